"""Several processes on one SQLite file: killed, stopped, all at once, and waking each other.

The others are `sqlite_child`; none outlives its test. Times here are real: a bound turns a hang into a failure, and
where a latency is the point its median over some tries is judged.
"""

import errno
import os
import random
import signal
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from alkstore_trio import Job, Store, open_sqlite
from alkstore_trio._engines.sqlite import file
from tests.engines import children
from tests.engines.children import Child
from tests.engines.sqlite_child import TASKS, Outcome

_KILLS = 60  # on each loop; more where the machine was too busy for the killed to have done enough
_MOST_KILLS = 5 * _KILLS
_ENOUGH = {"enqueued": _KILLS, "acked": _KILLS, "committed": _KILLS, "copied": _KILLS // 2}
_LOAD = 6.0  # seconds of the run with many processes
_RESETS = 3.0  # seconds of the run with many checkpoints
_LOW_LIMIT = 64 * 2**10  # bytes of a WAL that is to be checkpointed often
_BOUND = 30.0  # seconds that nothing here takes
_HINTED = 0.5  # seconds in which a hint arrives, well before the poll that makes up for a lost one
_UNHINTED = 1.5  # seconds in which that poll has done so
_BEHIND = 5_400  # seconds that a waker's clock is late, so that what it schedules by the hour is due at once


child = partial(children.child, "tests.engines.sqlite_child")


def is_there(path: str) -> bool:
    """Whether there is a folder for `fifos`."""
    return os.path.exists(f"{path}-alkstore")


def fifos(path: str) -> set[str]:
    """The names of what the stores on a file are told of wakes by."""
    names = os.listdir(f"{path}-alkstore") if is_there(path) else []
    assert all(Path(f"{path}-alkstore", name).is_fifo() for name in names)
    return set(names)


def integrity(path: str) -> str:
    """What SQLite itself says of a file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_autocheckpoint = 0")
        [(answer,)] = connection.execute("pragma integrity_check")
        return str(answer)


# Killed


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_what_has_returned_survives_a_kill_and_nothing_is_half_there(path: str, loop: str) -> None:
    chance = random.Random(f"kills on {loop}")
    said: list[tuple[str, Any]] = []
    with child("forks", loop, path) as forks:
        for n in range(_MOST_KILLS):
            if n >= _KILLS and _enough(said):
                break
            forks.tell(f"{n}")
            said += children.killed(forks, chance.uniform(0.005, 0.15))
    assert integrity(path) == "ok"
    anyio.run(_reconcile, path, said, backend=loop)
    assert all(name.startswith(".") for name in fifos(path))  # those that were killed while they made theirs


def _enough(said: list[tuple[str, Any]]) -> bool:
    done = Counter(verb for verb, _ in said)
    return all(done[verb] > least for verb, least in _ENOUGH.items())


async def _reconcile(path: str, said: list[tuple[str, Any]]) -> None:
    assert _enough(said)
    async with open_sqlite(path, durability="normal") as store:
        await store.notify("channel")  # a commit that wakes somebody
        await children.left_behind(store, said)


# Stopped


@pytest.mark.anyio
async def test_a_claimant_that_was_stopped_past_its_lease_cannot_ack(path: str, anyio_backend: str) -> None:
    with child("claimant", anyio_backend, path) as stopped:
        assert await anyio.to_thread.run_sync(stopped.heard) == ["claimed"]
        stopped.stop()
        async with open_sqlite(path, durability="normal") as store:
            queue = store.queue("jobs")
            with anyio.fail_after(_BOUND):
                handle = None
                while handle is None:
                    await anyio.sleep(0.01)  # real time, like the lease
                    handle = await queue.claim("other")
            assert (handle.job.payload, handle.job.attempts) == ("job", 2)
            stopped.tell("go on")
            stopped.process.send_signal(signal.SIGCONT)
            assert await anyio.to_thread.run_sync(stopped.heard) == [False]
            assert await handle.ack()


# All at once


def _run(children: Iterable[tuple[object, ...]]) -> list[Outcome]:
    """What children that start together have come to, none of them warned."""
    with ExitStack() as stack:
        running = [stack.enter_context(child(str(role), str(loop), *rest)) for role, loop, *rest in children]
        outcomes = [Outcome(*outcome) for each in running for outcome in each.heard()]
    assert [warning for outcome in outcomes for warning in outcome.warnings] == []
    return outcomes


async def _check_ids(path: str, outcomes: list[Outcome]) -> None:
    entered = [unique for outcome in outcomes for unique in outcome.entered]
    claimed = [unique for outcome in outcomes for unique in outcome.claimed]
    assert [unique for outcome in outcomes for unique in outcome.refused] == []
    async with open_sqlite(path) as store:
        await children.came_out_once(store, entered, claimed)


def test_four_processes_of_four_tasks_claim_no_job_twice_and_meet_no_error(path: str) -> None:
    loops = ["trio", "asyncio", "trio", "asyncio"]
    outcomes = _run(("busy", loop, path, f"child {n}", _LOAD, file._WAL_LIMIT) for n, loop in enumerate(loops))
    assert all(len(outcome.claimed) > TASKS for outcome in outcomes)  # nobody starved
    anyio.run(_check_ids, path, outcomes)
    assert integrity(path) == "ok"


# Checkpoints


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_no_commit_is_lost_to_checkpoints_and_closes_beside_it(path: str, loop: str) -> None:
    committing = [("busy", loop, path, f"child {n}", _RESETS, _LOW_LIMIT) for n in range(2)]
    outcomes = _run([*committing, ("reopen", loop, path, "reopening", _RESETS, _LOW_LIMIT)])
    assert sum(outcome.checkpoints for outcome in outcomes) > 20
    assert len(outcomes[-1].entered) > 20
    anyio.run(_check_ids, path, outcomes)
    assert integrity(path) == "ok"


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_no_commit_is_lost_where_each_close_may_be_the_last_one(path: str, loop: str) -> None:
    outcomes = _run(("reopen", loop, path, f"child {n}", _RESETS, _LOW_LIMIT) for n in range(3))
    assert all(len(outcome.entered) > 20 for outcome in outcomes)
    anyio.run(_check_ids, path, outcomes)
    assert integrity(path) == "ok"
    assert not is_there(path)


@pytest.mark.anyio
async def test_no_checkpoint_of_ours_runs_without_the_write_lock_held(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    query = file.Session.query

    def watched(session: file.Session, text: str, *arguments: Any) -> list[Any]:
        if "wal_checkpoint" in text:
            found.append(begun(path))
        return query(session, text, *arguments)

    monkeypatch.setattr(file, "_WAL_LIMIT", 1)
    monkeypatch.setattr(file.Session, "query", watched)
    async with open_sqlite(path) as store:
        for n in range(20):
            await store.queue("jobs").enqueue(n)
    assert len(found) >= 19
    assert set(found) == {sqlite3.SQLITE_BUSY}


@pytest.mark.anyio
async def test_no_connection_of_ours_checkpoints_by_itself(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    automatic: list[int] = []
    connect = file.File.connect

    def watched(self: file.File) -> file.Session:
        session = connect(self)
        automatic.append(session.query("pragma wal_autocheckpoint")[0][0])
        return session

    monkeypatch.setattr(file, "_WAL_LIMIT", 1)
    monkeypatch.setattr(file.File, "connect", watched)
    async with open_sqlite(path) as store:
        await store.queue("jobs").enqueue("job")
        assert await store.queues() == ["jobs"]
        await store.queue("jobs").enqueue("job")
    assert len(automatic) >= 3  # the one that writes, one that reads, the one that checkpoints
    assert set(automatic) == {0}


def begun(path: str) -> int:
    """What SQLite says to a writer of somebody else's, who waits for nobody."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("begin immediate")
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode
        return sqlite3.SQLITE_OK


# Wakes


@asynccontextmanager
async def woken_by_all(store: Store) -> AsyncIterator[dict[str, Callable[[], Awaitable[float]]]]:
    """For each verb of a waker, how to learn when it has woken who waits for it here."""
    senders = {verb: anyio.create_memory_object_stream[float](100) for verb in ("enqueue", "schedule")}

    def handler(verb: str) -> Callable[[Job], Awaitable[None]]:
        async def handle(job: Job) -> None:
            await senders[verb][0].send(time.monotonic())

        return handle

    async def at(arrival: Awaitable[object]) -> float:
        await arrival
        return time.monotonic()

    async with AsyncExitStack() as stack:
        for sender, receiver in senders.values():
            stack.enter_context(sender)
            stack.enter_context(receiver)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        wakes = await stack.enter_async_context(store.listen("channel"))
        events = await stack.enter_async_context(store.stream("stream").subscribe("consumer"))
        await tasks.start(store.queue("work").run_worker, handler("enqueue"))
        await tasks.start(store.queue("scheduled").run_worker, handler("schedule"))
        await tasks.start(store.run_schedules)
        yield {
            "notify": lambda: at(wakes.receive()),
            "publish": lambda: at(events.receive()),
            "enqueue": senders["enqueue"][1].receive,
            "schedule": senders["schedule"][1].receive,
        }
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def a_waker(path: str, loop: str, hints: str) -> AsyncIterator[Child]:
    with child("waker", loop, path, _BEHIND, hints) as waker:
        assert await anyio.to_thread.run_sync(waker.heard) == ["ready"]
        yield waker


async def latency(waker: Child, verb: str, arrival: Callable[[], Awaitable[float]]) -> float:
    """Seconds from another process's call to the wake here."""
    with anyio.fail_after(_BOUND):
        waker.tell(verb)
        woken = await arrival()
        [called] = await anyio.to_thread.run_sync(waker.heard)
        return woken - float(called)


async def median_latency(path: str, loop: str, verb: str, hints: str, times: int) -> float:
    """Seconds from another process's call to the wake here, its hints sent or lost."""
    async with (
        open_sqlite(path, durability="normal") as store,
        woken_by_all(store) as arrivals,
        a_waker(path, loop, hints) as waker,
    ):
        return statistics.median([await latency(waker, verb, arrivals[verb]) for _ in range(times)])


@pytest.mark.anyio
@pytest.mark.parametrize("verb", ["notify", "enqueue", "publish", "schedule"])
async def test_another_process_wakes_who_waits_here_well_before_the_safety_poll(
    path: str, anyio_backend: str, verb: str
) -> None:
    assert await median_latency(path, anyio_backend, verb, "sent", times=7) < _HINTED


@pytest.mark.anyio
@pytest.mark.parametrize("verb", ["notify", "enqueue", "publish", "schedule"])
async def test_a_wake_whose_hint_was_lost_is_found_by_the_safety_poll(path: str, anyio_backend: str, verb: str) -> None:
    assert await median_latency(path, anyio_backend, verb, "lost", times=3) < _UNHINTED


@pytest.mark.anyio
async def test_what_a_killed_store_left_for_hints_is_removed_by_the_next_commit_that_wakes(
    path: str, anyio_backend: str
) -> None:
    with child("idle", anyio_backend, path) as killed:
        assert await anyio.to_thread.run_sync(killed.heard) == ["ready"]
    [left] = fifos(path)
    async with open_sqlite(path) as store:
        [own] = fifos(path) - {left}
        await store.notify("channel")
        assert fifos(path) == {own}
    assert not is_there(path)


@pytest.mark.anyio
async def test_what_a_store_left_that_was_killed_while_it_opened_is_removed_in_time(
    path: str, anyio_backend: str
) -> None:
    with child("halfway", anyio_backend, path) as killed:
        await anyio.to_thread.run_sync(killed.ended)
    [left] = fifos(path)
    os.utime(Path(f"{path}-alkstore", left), (0, 0))  # for long enough that nobody can still be at work on it
    async with open_sqlite(path) as store:
        await store.notify("channel")
    assert not is_there(path)


@pytest.mark.anyio
async def test_a_store_that_is_closed_takes_its_hints_away_and_leaves_others_theirs(
    path: str, anyio_backend: str
) -> None:
    with child("idle", anyio_backend, path) as other:
        assert await anyio.to_thread.run_sync(other.heard) == ["ready"]
        others = fifos(path)
        assert len(others) == 1
        async with open_sqlite(path) as store:
            await store.notify("channel")
            assert len(fifos(path)) == 2
        assert fifos(path) == others
        other.tell("close")
        await anyio.to_thread.run_sync(other.ended)
        assert not is_there(path)


@pytest.mark.anyio
async def test_a_store_that_opens_while_the_last_one_takes_the_folder_away_has_its_hints_all_the_same(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mkdir, races = os.mkdir, 2

    def race(folder: str, *arguments: Any) -> None:
        nonlocal races
        mkdir(folder, *arguments)
        if races:
            races -= 1
            os.rmdir(folder)

    monkeypatch.setattr(os, "mkdir", race)
    async with open_sqlite(path):
        assert races == 0
        assert len(fifos(path)) == 1
    assert "polling" not in caplog.text


@pytest.mark.anyio
async def test_a_store_that_is_out_of_descriptors_leaves_others_their_hints(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def refused(name: Any, *arguments: Any) -> int:
        if "-alkstore" in str(name):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opening(name, *arguments)

    async with open_sqlite(path) as store, open_sqlite(path):
        both = fifos(path)
        assert len(both) == 2
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refused)
            await store.notify("channel")
        assert fifos(path) == both
