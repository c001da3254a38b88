"""Several processes and stores on one Postgres server: killed, stopped, of different opinions about the time.

The other processes are `postgres_child`; none outlives its test. Times here are real: a bound turns a hang into a
failure, and is never what a test is about.
"""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from alkstore_trio import LockHandle, Store
from tests.engines import children
from tests.engines.children import Child
from tests.engines.places import Place, until
from tests.servers import Server

_KILLS = 20  # on each loop
_LEASE = 1.0  # seconds of a claim whose claimant is stopped
_LOAD = 3.0  # seconds of the run with many processes
_ASTRAY = 7_200  # seconds
_BOUND = 30.0  # seconds that nothing here takes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server."""
    with Server() as server:
        yield server


_numbers = count(1)


@pytest.fixture
def place(server: Server) -> Place:
    """A place of a test's own."""
    return Place(server.dsn, f"processes_{next(_numbers)}")


def child(role: str, loop: str, place: Place, *arguments: object) -> AbstractContextManager[Child]:
    """A child that works in a place."""
    return children.child("tests.engines.postgres_child", role, loop, place.dsn, place.schema, *arguments)


# Killed


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_what_has_returned_survives_a_kill_and_nothing_is_half_there(place: Place, loop: str) -> None:
    chance = random.Random(f"kills on {loop}")
    said: list[tuple[str, Any]] = []
    with child("forks", loop, place) as forks:
        for n in range(_KILLS):
            forks.tell(f"{n}")
            said += children.killed(forks, chance.uniform(0.005, 0.3), since="ready")
    anyio.run(_reconcile, place, said, backend=loop)


async def _reconcile(place: Place, said: list[tuple[str, Any]]) -> None:
    done = {verb: len(subjects) for verb, subjects in children.by_verb(said).items()}
    assert done["enqueued"] > _KILLS
    assert done["acked"] > _KILLS
    assert done["committed"] > _KILLS
    assert done["copied"] > _KILLS // 2
    await until(lambda: not place.sessions())  # one that a kill met in the middle of a statement brings it to an end
    async with place.open() as store:
        await children.left_behind(store, said)


# Stopped


@pytest.mark.anyio
async def test_a_claimant_that_was_stopped_past_its_lease_cannot_ack(place: Place, anyio_backend: str) -> None:
    with child("claimant", anyio_backend, place, _LEASE) as stopped:
        [_, expires_at] = await stopped.hears()
        stopped.stop()
        async with place.open() as store:
            queue = store.queue("jobs")
            with anyio.fail_after(_BOUND):
                handle = None
                while handle is None:
                    handle = await queue.claim("other")
            assert (handle.job.payload, handle.job.attempts) == ("job", 2)
            assert handle.job.claim_expires_at is not None
            assert handle.job.claim_expires_at - _LEASE > expires_at  # not handed out while the first lease lived
            stopped.tell("go on")
            stopped.process.send_signal(signal.SIGCONT)
            assert await stopped.hears() == [False]
            # Whether this claim is still live depends on the machine; its row is untouched in either case.
            assert await queue.get_job(handle.job.id) is not None


# All at once


@pytest.mark.anyio
async def test_three_processes_of_four_tasks_claim_no_job_twice_and_meet_no_error(place: Place) -> None:
    entered: list[str] = []
    claimed: list[str] = []
    with ExitStack() as stack:
        loops = ["trio", "asyncio", "trio"]
        running = [stack.enter_context(child("busy", loop, place, f"{n}", _LOAD)) for n, loop in enumerate(loops)]
        for each in running:
            went_in, came_out, refused = await each.hears()
            assert came_out  # nobody starved
            assert refused == []
            entered += went_in
            claimed += came_out
    async with place.open() as store:
        await children.came_out_once(store, entered, claimed)


# Opening


@pytest.mark.anyio
async def test_stores_that_open_at_once_where_there_is_no_schema_yet_all_open(place: Place) -> None:
    # Whoever waited for his turn must see what was made meanwhile, and not what his session had cached before.
    async def open_one(store: Place) -> None:
        async with store.open():
            pass

    for n in range(3):  # it is a race
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(open_one, attrs.evolve(place, schema=f"{place.schema}_{n}"))


# Clocks


@pytest.mark.anyio
async def test_a_lease_is_by_the_servers_clock_whatever_the_hosts_say(place: Place, anyio_backend: str) -> None:
    def now() -> float:
        [(seconds,)] = place.ask("select extract(epoch from clock_timestamp())::float8")
        return float(seconds)

    async with place.open() as store:
        with (
            child("astray", anyio_backend, place, _ASTRAY) as fast,
            child("astray", anyio_backend, place, -_ASTRAY) as slow,
        ):
            assert await fast.hears() == ["ready"]
            assert await slow.hears() == ["ready"]
            queue = store.queue("jobs", visibility_timeout=60)
            for claims, others in ((fast, slow), (slow, fast)):
                await queue.enqueue("job")  # ready at once for everybody
                before = now()
                claims.tell("claim")
                [expires_at] = await claims.hears()
                assert before <= expires_at - 60 <= now()
                others.tell("claim")
                assert await others.hears() == [None]  # for whom the lease would have lapsed, or the job not be ready
                assert await queue.claim("here") is None


@pytest.mark.anyio
async def test_without_a_clock_of_its_own_a_store_never_asks_the_host(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    right = time.time

    def asking() -> float:
        frame = sys._getframe(1)
        if "alkstore_trio" in frame.f_code.co_filename:
            asked.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return right()

    monkeypatch.setattr(time, "time", asking)
    async with place.open() as store:
        queue = store.queue("jobs")
        await queue.enqueue("job", delay=0)
        handle = await queue.claim("worker")
        assert handle is not None
        assert await handle.heartbeat(5)
        assert await handle.ack()
        assert await store.stream("events").publish("event") == 1
        assert await store.try_lock("lock", "owner", 5) is not None
        await store.schedule("daily", "@every 1d", "jobs", "job")
        await queue.sweep_expired()
    assert asked == []


@pytest.mark.anyio
async def test_without_a_clock_of_its_own_an_operation_has_one_instant_all_the_same(place: Place) -> None:
    many = 200
    async with place.open() as store:
        queue = store.queue("jobs")
        await queue.enqueue_many(range(many), delay=60, expires=90)
        jobs = await queue.jobs(limit=many)
        assert len(jobs) == many
        assert len({(job.created_at, job.run_at, job.expires_at) for job in jobs}) == 1
        ready = store.queue("ready")
        await ready.enqueue_many(range(many))
        handles = await ready.claim_batch("worker", many)
        assert len(handles) == many
        assert len({handle.job.claim_expires_at for handle in handles}) == 1


# Locks


@pytest.mark.anyio
async def test_of_fifty_contenders_one_at_a_time_holds_the_lock_and_tokens_grow(place: Place) -> None:
    holders: set[str] = set()
    tokens: list[int] = []

    async def contend(store: Store, name: str) -> None:
        lock: LockHandle | None = None
        while lock is None:
            lock = await store.try_lock("lock", name, ttl=60)
        assert holders == set()
        holders.add(name)
        tokens.append(lock.token)
        await store.queues()  # a round trip in which others try
        assert holders == {name}
        holders.remove(name)
        assert await lock.release()

    with anyio.fail_after(_BOUND):
        async with (
            place.open(max_connections=4) as one,
            place.open(max_connections=4) as other,
            anyio.create_task_group() as tasks,
        ):
            for number in range(50):
                tasks.start_soon(contend, (one, other)[number % 2], f"contender {number}")
    assert len(tokens) == 50
    assert tokens == sorted(set(tokens))


# Schedules


@pytest.mark.anyio
async def test_when_the_leaders_process_is_killed_a_standby_takes_over(place: Place, anyio_backend: str) -> None:
    with anyio.fail_after(_BOUND):
        async with place.open() as store, anyio.create_task_group() as tasks:
            await store.schedule("daily", "@every 1d", "jobs", "job")
            with child("leader", anyio_backend, place) as leader:
                assert await leader.hears() == ["leads"]
                leads = anyio.Event()

                async def stand_by() -> None:
                    async with anyio.create_task_group() as runner:
                        await runner.start(_standing_by, store)
                        leads.set()

                tasks.start_soon(stand_by)
                leader.kill()
            [(first,)] = place.ask(f"select token from {place.schema}.locks where name = '__alkstore_scheduler'")
            assert not leads.is_set()  # the lease lives on
            # As if its ten seconds had passed, and a boundary had been reached.
            place.ask(f"update {place.schema}.locks set expires_at = 0 where name = '__alkstore_scheduler'")
            place.ask(f"update {place.schema}.schedules set next_at = next_at - 86400")
            await leads.wait()
            [(second,)] = place.ask(f"select token from {place.schema}.locks where name = '__alkstore_scheduler'")
            assert second > first
            handle = None
            while handle is None:
                handle = await store.queue("jobs").claim("worker")
            assert handle.job.payload == "job"
            tasks.cancel_scope.cancel()


async def _standing_by(store: Store, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await store.run_schedules(standby=True, task_status=task_status)


# Streams


@pytest.mark.anyio
async def test_a_consumer_misses_nothing_of_eight_publishers_that_hold_and_roll_back(place: Place) -> None:
    committed: set[str] = set()
    seen: list[tuple[int, str]] = []

    async def publish(store: Store, number: int) -> None:
        chance = random.Random(f"publisher {number}")
        for n in range(12):
            unique = f"{number}.{n}"
            async with store.begin_tx() as tx:
                for part in range(chance.randint(1, 3)):
                    await tx.publish_tx("stream", f"{unique}.{part}")
                    committed.add(f"{unique}.{part}")
                await anyio.sleep(chance.choice([0, 0, 0.01]))  # a hold, which others' publishes wait for
                if chance.random() < 0.7:
                    await tx.commit()
                else:
                    committed.difference_update({f"{unique}.{part}" for part in range(3)})

    async def consume(store: Store) -> None:
        stream = store.stream("stream")
        while not seen or seen[-1][1] != "the end":
            page = await stream.read_from_consumer("consumer", 5)
            seen.extend((event.offset, event.payload) for event in page)
            if page:
                assert await stream.save_offset("consumer", page[-1].offset)

    with anyio.fail_after(_BOUND):
        async with place.open() as one, place.open() as other, anyio.create_task_group() as tasks:
            tasks.start_soon(consume, other)
            async with anyio.create_task_group() as publishers:
                for number in range(8):
                    publishers.start_soon(publish, (one, other)[number % 2], number)
            await one.stream("stream").publish("the end")
    assert [payload for _, payload in seen].count("the end") == 1
    assert Counter(payload for _, payload in seen) == Counter([*committed, "the end"])
    assert [offset for offset, _ in seen] == sorted({offset for offset, _ in seen})
