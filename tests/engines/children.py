"""Other processes of a test: how one is started and heard, and those that are killed at any instant of their work.

What a child does it says in lines of JSON on its standard output, each written whole before the next step. It asserts
nothing: its parent reads the lines and judges. None outlives its test.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import anyio
import anyio.to_thread
import attrs

from alkstore_trio import Job, Outbox, Queue, Store

__all__ = [
    "LEASE",
    "LONGEST",
    "PADDING",
    "Child",
    "all_jobs",
    "by_verb",
    "came_out_once",
    "child",
    "effects",
    "forks",
    "killed",
    "left_behind",
    "load",
    "say",
]

LEASE = 0.5  # seconds of a claim whose claimant may be killed, after which another child takes the job
LONGEST = 100  # seconds that a child lives at most
PADDING = "x" * 500  # so that a few jobs fill a WAL with a low limit

_ROOT = Path(__file__).parents[2]
_BOUND = 30.0  # seconds that no answer takes

Said = list[tuple[str, Any]]


# Of the parent


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

    def ended(self) -> None:
        """Wait until it has ended, having said no more."""
        assert self.process.stdout is not None
        assert self.process.stdout.read() == ""

    def stop(self) -> None:
        """Have it do nothing until it is told to continue."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        """End it without a word."""
        self.process.send_signal(signal.SIGKILL)


@contextmanager
def child(module: str, role: str, loop: str, *arguments: object) -> Iterator[Child]:
    """A child that runs a module, dead after the block, and all that it has forked with it."""
    command = [sys.executable, "-m", module, role, loop, *map(str, arguments)]
    with Popen(command, cwd=_ROOT, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True) as process:
        try:
            yield Child(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # not waited for before, so the number is still its own


def killed(forked: Child, seconds: float, since: str = "pid") -> Said:
    """What one that was forked said until it was killed, so many seconds after it had said that."""
    said: Said = []

    def listen_for(end: str) -> Any:
        while True:
            verb, subject = forked.heard()
            if verb == end:
                return subject
            said.append((verb, subject))

    process = listen_for("pid")
    if since != "pid":
        listen_for(since)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)  # a zombie at worst: only then does its parent wait for it, and say so
    assert listen_for("dead") == signal.SIGKILL
    return said


def by_verb(said: Said) -> dict[str, list[Any]]:
    """What was said, sorted."""
    subjects: dict[str, list[Any]] = {}
    for verb, subject in said:
        subjects.setdefault(verb, []).append(subject)
    return subjects


async def left_behind(store: Store, said: Said) -> None:
    """Judge by a store what `effects` that were killed have left in it."""
    left = Counter(job.payload for job in await all_jobs(store.queue("jobs")))
    committed = Counter(job.payload for job in await all_jobs(store.queue("committed")))
    copies = [job.payload for job in await all_jobs(store.queue("copies"))]
    events = await store.stream("events").read_since(0, 1_000_000)
    saved = (await store.stream("events").statistics()).consumers
    subjects = by_verb(said)
    enqueued, acked = set(subjects["enqueued"]), Counter(subjects["acked"])

    # Jobs: each that was promised is there, or was acked, once; whether an ack that did not return landed is open.
    perhaps_acked = set(subjects["about to ack"])
    assert max(left.values(), default=0) <= 1
    assert left.keys() <= set(subjects["about to enqueue"])
    assert max(acked.values()) == 1
    assert left.keys().isdisjoint(acked)
    assert enqueued - left.keys() <= perhaps_acked
    assert perhaps_acked <= set(subjects["about to enqueue"])

    # Transactions: all three or none, and what returned is there.
    published = Counter(event.payload[0] for event in events)
    assert committed == published
    assert max(committed.values()) == 1
    assert set(subjects["committed"]) <= committed.keys() <= set(subjects["about to commit"])
    last_of = {consumer: event.offset for event in events for consumer in [event.payload[1]]}
    assert {consumer: offset for consumer, offset in saved.items() if consumer != "copier"} == last_of

    # What was copied is what the saved offset says, each once and in order.
    assert copies == [event.offset for event in events if event.offset <= saved["copier"]]
    assert set(subjects["copied"]) <= set(copies) <= set(subjects["about to copy"])


async def came_out_once(store: Store, entered: list[str], claimed: list[str]) -> None:
    """Judge by a store that each job which went in under `load` came out once, or is still there, once."""
    left = [job.payload[0] for job in await all_jobs(store.queue("jobs"))]
    assert Counter(claimed + left) == Counter(entered)  # no claim lapses, so a second one would be a duplicate
    assert max(Counter(entered).values()) == 1


async def all_jobs(queue: Queue | Outbox) -> list[Job]:
    """What is in a queue."""
    jobs: list[Job] = []
    while page := await queue.jobs(limit=1_000, after=jobs[-1].id if jobs else 0):
        jobs.extend(page)
    return jobs


# Of the child


def say(*words: object) -> None:
    """Write a line that a kill a moment later does not take back."""
    os.write(1, json.dumps(words).encode() + b"\n")


def forks(loop: str, work: Callable[[str], Awaitable[object]]) -> None:
    """Fork a child for each name on the standard input; starting a Python for each would cost more than its work."""
    import trio  # noqa: F401  # what is imported here no child has to import

    while name := sys.stdin.readline().strip():
        process = os.fork()
        if not process:
            signal.alarm(LONGEST)
            try:
                anyio.run(work, name, backend=loop)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        say("pid", process)
        say("dead", os.waitpid(process, 0)[1])


async def load(store: Store, name: str, tasks: int, seconds: float) -> tuple[list[str], list[str], list[str]]:
    """Enqueue, claim and ack as fast as it goes; the jobs that went in, those that came out, and acks refused."""
    entered: list[str] = []
    claimed: list[str] = []
    refused: list[str] = []
    end = time.monotonic() + seconds

    async def work(number: int) -> None:
        queue = store.queue("jobs")
        for n in itertools.count():
            if time.monotonic() > end:
                return
            unique = f"{name}.{number}.{n}"
            await queue.enqueue([unique, PADDING])
            entered.append(unique)
            if n % 8 == 0:
                continue  # so that the queue grows and a claim meets others' jobs
            handle = await queue.claim(f"{name}.{number}")
            if handle is not None:
                claimed.append(handle.job.payload[0])
                if not await handle.ack():
                    refused.append(handle.job.payload[0])

    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(work, number)
    return entered, claimed, refused


async def effects(store: Store, name: str, tasks: int) -> None:
    """Do what a kill may come upon, in so many tasks, for good."""
    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(_effects_of_a_task, store, name, number)


async def _effects_of_a_task(store: Store, name: str, number: int) -> None:
    choose = random.Random(f"{name}.{number}")
    consumer = f"task {number}"
    for n in itertools.count():
        unique = f"{name}.{number}.{n}"
        verb = choose.choice([_enqueue, _claim_and_ack, _transaction, _copy if number == 0 else _enqueue])
        await verb(store, consumer, unique)


async def _enqueue(store: Store, consumer: str, unique: str) -> None:
    say("about to enqueue", unique)
    await store.queue("jobs", visibility_timeout=LEASE, max_attempts=10_000).enqueue(unique)
    say("enqueued", unique)


async def _claim_and_ack(store: Store, consumer: str, unique: str) -> None:
    handle = await store.queue("jobs").claim(consumer)
    if handle is not None:
        say("about to ack", handle.job.payload)
        landed = await handle.ack()
        say("acked" if landed else "refused", handle.job.payload)


async def _transaction(store: Store, consumer: str, unique: str) -> None:
    """Three effects; the publish has the transaction hold the writer, or the stream."""
    say("about to commit", unique)
    async with store.transaction() as tx:
        offset = await tx.publish_tx("events", [unique, consumer])
        await tx.save_offset_tx("events", consumer, offset)
        await tx.enqueue_tx("committed", unique)
    say("committed", unique)


async def _copy(store: Store, consumer: str, unique: str) -> None:
    """Work on an event exactly once: the effect and the offset in one transaction."""
    for event in await store.stream("events").read_from_consumer("copier", 1):
        say("about to copy", event.offset)
        async with store.begin_tx() as tx:
            if await tx.save_offset_tx("events", "copier", event.offset):  # else a child's commit outlived its kill
                await tx.enqueue_tx("copies", event.offset)
                await tx.commit()
                say("copied", event.offset)
