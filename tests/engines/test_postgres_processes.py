"""Several processes and stores on one Postgres server: killed, stopped, of different opinions about the time.

The other processes are `postgres_child`; none outlives its test. Times here are real: a bound turns a hang into a
failure, and is never what a test is about.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from alkstore_trio import Job, LockHandle, Store
from tests.engines.postgres_child import Place, until
from tests.servers import Server

_ROOT = Path(__file__).parents[2]
_KILLS = 20  # on each loop
_LEASE = 1.0  # seconds of a claim whose claimant is stopped
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


# Children


@attrs.frozen
class Child:
    """Another process."""

    process: Popen[str]

    def tell(self, line: str) -> None:
        """Write a line to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def heard(self) -> list[Any]:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child has ended; see what it wrote on its standard error"
        words: list[Any] = json.loads(line)
        return words

    async def hears(self) -> list[Any]:
        """The same, without keeping the loop from others."""
        with anyio.fail_after(_BOUND):
            return await anyio.to_thread.run_sync(self.heard, abandon_on_cancel=True)

    def stop(self) -> None:
        """Have it do nothing until it is told to continue."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        """End it without a word."""
        self.process.send_signal(signal.SIGKILL)


@contextmanager
def child(role: str, loop: str, place: Place, *arguments: object) -> Iterator[Child]:
    """A child, which is dead after the block, and all that it has forked with it."""
    command = [sys.executable, "-m", "tests.engines.postgres_child", role, loop, place.dsn, place.schema]
    command += map(str, arguments)
    with Popen(command, cwd=_ROOT, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True) as process:
        try:
            yield Child(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # not waited for before, so the number is still its own


async def all_jobs(store: Store, queue: str) -> list[Job]:
    jobs: list[Job] = []
    while page := await store.queue(queue).jobs(limit=1_000, after=jobs[-1].id if jobs else 0):
        jobs.extend(page)
    return jobs


# Killed


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_what_has_returned_survives_a_kill_and_nothing_is_half_there(place: Place, loop: str) -> None:
    chance = random.Random(f"kills on {loop}")
    said: list[tuple[str, Any]] = []
    with child("forks", loop, place) as forks:
        for n in range(_KILLS):
            forks.tell(f"{n}")
            said += _killed(forks, chance.uniform(0.005, 0.3))
    anyio.run(_reconcile, place, said, backend=loop)


def _killed(forks: Child, seconds: float) -> list[tuple[str, Any]]:
    """What a child said until it was killed, so many seconds after its store was open."""
    said: list[tuple[str, Any]] = []

    def listen_for(end: str) -> Any:
        while True:
            verb, subject = forks.heard()
            if verb == end:
                return subject
            said.append((verb, subject))

    process = listen_for("pid")
    listen_for("ready")
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)  # a zombie at worst: only then does its parent wait for it, and say so
    assert listen_for("dead") == signal.SIGKILL
    return said


async def _reconcile(place: Place, said: list[tuple[str, Any]]) -> None:
    await until(lambda: not place.sessions())  # one that a kill met in the middle of a statement brings it to an end
    async with place.open() as store:
        left = Counter(job.payload for job in await all_jobs(store, "jobs"))
        committed = Counter(job.payload for job in await all_jobs(store, "committed"))
        copies = [job.payload for job in await all_jobs(store, "copies")]
        events = await store.stream("events").read_since(0, 1_000_000)
        saved = (await store.stream("events").statistics()).consumers

    by_verb: dict[str, list[Any]] = {}
    for verb, subject in said:
        by_verb.setdefault(verb, []).append(subject)
    enqueued, acked = set(by_verb["enqueued"]), Counter(by_verb["acked"])
    assert len(by_verb["enqueued"]) > _KILLS
    assert len(by_verb["acked"]) > _KILLS
    assert len(by_verb["committed"]) > _KILLS
    assert len(by_verb["copied"]) > _KILLS // 2

    # Jobs: each that was promised is there, or was acked, once; whether an ack that did not return landed is open.
    perhaps_acked = set(by_verb["about to ack"])
    assert max(left.values(), default=0) <= 1
    assert left.keys() <= set(by_verb["about to enqueue"])
    assert max(acked.values()) == 1
    assert left.keys().isdisjoint(acked)
    assert enqueued - left.keys() <= perhaps_acked
    assert perhaps_acked <= set(by_verb["about to enqueue"])

    # Transactions: all three or none, and what returned is there.
    published = Counter(event.payload[0] for event in events)
    assert committed == published
    assert max(committed.values()) == 1
    assert set(by_verb["committed"]) <= committed.keys() <= set(by_verb["about to commit"])
    last_of = {consumer: event.offset for event in events for consumer in [event.payload[1]]}
    assert {consumer: offset for consumer, offset in saved.items() if consumer != "copier"} == last_of

    # What was copied is what the saved offset says, each once and in order.
    assert copies == [event.offset for event in events if event.offset <= saved["copier"]]
    assert set(by_verb["copied"]) <= set(copies) <= set(by_verb["about to copy"])


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
