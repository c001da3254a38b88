"""The SQLite engine against the same statements in the loop's own thread, and against itself without group commit.

Unlike the other scripts this one takes time by the wall: threads and the disk are what is measured. The floor runs the
store's very statements on one connection, a transaction a verb, and blocks its loop; "each alone" is the store with a
transaction for every request. Durability is "normal" unless a row says otherwise.
"""

import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest import mock

import anyio
import trio

from alkstore_trio import Store, Tx, open_sqlite
from alkstore_trio import _ops as ops
from alkstore_trio._engines import sqlops
from alkstore_trio._engines.sqlite import writer
from alkstore_trio._engines.sqlite.file import File, Session
from alkstore_trio._rules.payload import decode, encode
from alkstore_trio._rules.stamps import PLAIN

from .harness import PAYLOAD, Samples, arguments, on_loop, tasks_of, turns

BATCH = 100
Durability = Literal["full", "normal"]

_wall = time.perf_counter


@asynccontextmanager
async def _store(durability: Durability = "normal") -> AsyncIterator[Store]:
    with TemporaryDirectory() as folder:
        async with open_sqlite(Path(folder, "bench.db"), durability=durability) as store:
            yield store


class Floor:
    """The store's statements on one connection, in the caller's thread."""

    def __init__(self, folder: str) -> None:
        file = File(str(Path(folder, "floor.db")), "normal", "alkstore_", 30.0)
        self.session: Session = file.connect()
        file.prepare(self.session)
        self._last = 0

    def do(self, *todo: ops.Op[Any]) -> list[Any]:
        """Ops in one transaction."""
        answers = []
        self.session.begin()
        for op in todo:
            n = sqlops.ids_of(op)
            ids = range(self._last + 1, self._last + n + 1)
            self._last += n
            answers.append(self.session.run(sqlops.HANDLERS[op.__class__](op, time.time(), ids)))
        self.session.commit()
        return answers


@contextmanager
def _floor() -> Iterator[Floor]:
    with TemporaryDirectory() as folder:
        floor = Floor(folder)
        try:
            yield floor
        finally:
            floor.session.close()


async def floor_jobs(jobs: int) -> float:
    with _floor() as floor:
        started = _wall()
        for _ in range(jobs):
            floor.do(ops.Enqueue("q", (encode(PAYLOAD),), PLAIN, None, None, 0, None))
            [[row]] = floor.do(ops.Claim("q", "worker", 1))
            floor.do(ops.Ack("q", ((row.id, row.token),)))
        return (_wall() - started) / jobs


async def floor_batches(jobs: int) -> float:
    with _floor() as floor:
        started = _wall()
        for _ in range(jobs // BATCH):
            floor.do(*[ops.Enqueue("q", (encode(PAYLOAD),), PLAIN, None, None, 0, None) for _ in range(BATCH)])
            claims = [rows[0] for rows in floor.do(*[ops.Claim("q", "worker", 1)] * BATCH)]
            floor.do(*[ops.Ack("q", ((row.id, row.token),)) for row in claims])
        return (_wall() - started) / jobs


async def jobs_of_tasks(n: int, jobs: int, durability: Durability = "normal") -> float:
    async with _store(durability) as store:
        queue = store.queue("q")

        async def work() -> None:
            for _ in range(jobs // n):
                await queue.enqueue(PAYLOAD)
                handle = await queue.claim("worker")
                assert handle is not None
                await handle.ack()

        return await tasks_of(n, work) / (jobs // n * n)


async def each_alone(measured: Callable[[int], Awaitable[float]], units: int) -> float:
    with mock.patch.object(writer, "_GROUP", -1.0):
        return await measured(units)


async def batches(jobs: int) -> float:
    async with _store() as store:
        queue = store.queue("q")
        started = _wall()
        for _ in range(jobs // BATCH):
            await queue.enqueue_many([PAYLOAD] * BATCH)
            await queue.ack_batch(await queue.claim_batch("worker", BATCH))
        return (_wall() - started) / jobs


async def transactions(n: int, count: int, *, saving: bool = False) -> float:
    async with _store("full") as store:

        async def effects(tx: Tx) -> None:
            await tx.enqueue_tx("q", PAYLOAD)
            await tx.outbox_enqueue_tx("o", PAYLOAD)
            if saving:  # which reads what is saved, and so asks another thread
                await tx.save_offset_tx("s", "consumer", 1)
            else:
                await tx.notify_tx("c")

        async def work() -> None:
            for _ in range(count // n):
                await store.with_tx(effects)

        return await tasks_of(n, work) / (count // n * n)


async def bystander(writes: int, publishing: str) -> list[float]:
    """What a write takes beside 8 transactions that think 10 ms and publish first, last or never."""
    taken: list[float] = []
    async with _store() as store, anyio.create_task_group() as tasks:

        async def think() -> None:
            while True:
                async with store.transaction() as tx:
                    if publishing == "first":
                        await tx.publish_tx("s", PAYLOAD)
                    await tx.enqueue_tx("q", PAYLOAD)
                    await anyio.sleep(0.01)
                    await tx.enqueue_tx("q", PAYLOAD)
                    if publishing == "last":
                        await tx.publish_tx("s", PAYLOAD)

        for _ in range(8):
            tasks.start_soon(think)
        await anyio.sleep(0.05)
        for _ in range(writes):
            started = _wall()
            await store.queue("other").enqueue(PAYLOAD)
            taken.append(_wall() - started)
            await anyio.sleep(0.003)
        tasks.cancel_scope.cancel()
    return taken


async def publishing(events: int) -> float:
    async with _store() as store:
        stream = store.stream("s")
        started = _wall()
        for _ in range(events // BATCH):
            await stream.publish_many([PAYLOAD] * BATCH)
        offset = 0
        while page := await stream.read_since(offset, 1_000):
            offset = page[-1].offset
            for event in page:
                event.payload  # noqa: B018  # decodes
        assert offset == events
        return (_wall() - started) / events


async def floor_publishing(events: int) -> float:
    """Raw `sqlite3`, no ops."""
    with TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder, "a.db"), isolation_level=None)) as raw:
        raw.execute("pragma journal_mode = wal")
        raw.execute("pragma synchronous = normal")
        raw.execute(
            'create table e(stream text, "offset" integer, key text, body text, at real, '
            'primary key (stream, "offset")) strict, without rowid'
        )
        started = _wall()
        for first in range(1, events + 1, BATCH):
            raw.execute("begin immediate")
            now = time.time()
            raw.executemany(
                "insert into e values (?, ?, ?, ?, ?)",
                [("s", offset, None, encode(PAYLOAD), now) for offset in range(first, first + BATCH)],
            )
            raw.execute("commit")
        offset = 0
        read = 'select "offset", key, body, at from e where stream = ? and "offset" > ? order by "offset" limit 1000'
        while page := raw.execute(read, ("s", offset)).fetchall():
            offset = page[-1][0]
            for row in page:
                decode(row[2])
        return (_wall() - started) / events


async def subscriber(events: int) -> float:
    async with _store() as store:
        for _ in range(events // BATCH):
            await store.stream("s").publish_many([PAYLOAD] * BATCH)
        started = _wall()
        async with store.stream("s").subscribe("consumer", prefetch=1_000) as received:
            for _ in range(events):
                await received.receive()
        return (_wall() - started) / events


async def wake(times: int) -> list[float]:
    """From a notify in one store to a listener that runs, in another on the same file."""
    taken: list[float] = []
    with TemporaryDirectory() as folder:
        path = Path(folder, "bench.db")
        async with (
            open_sqlite(path, durability="normal") as one,
            open_sqlite(path, durability="normal") as other,
            other.listen("c") as wakes,
        ):
            for _ in range(times):
                started = _wall()
                await one.notify("c")
                await wakes.receive()
                taken.append(_wall() - started)
                await anyio.sleep(0.002)
    return taken


def _backlog(path: Path, pending: int, delayed: int) -> None:
    """Rows of eight priorities, and delayed ones of a higher priority than any."""
    now = time.time()
    row = "insert into alkstore_jobs(id, queue, body, state, lane, due, priority, run_at, max_attempts,"
    row += " visibility_timeout, base_backoff, created_at) values (?, 'q', '{}', 0, ?, ?, ?, ?, 3, 300, 5, ?)"
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("begin immediate")
        raw.executemany(row, ((1 + i, 1, now, i % 8, now, now) for i in range(pending)))
        raw.executemany(row, ((pending + 1 + i, 0, now + 1e6, 100, now + 1e6, now) for i in range(delayed)))
        raw.execute("update alkstore_counters set last = ? where name = 'job'", (pending + delayed,))
        raw.execute("commit")


async def backlog(pending: int, delayed: int, claims: int) -> float:
    with TemporaryDirectory() as folder:
        path = Path(folder, "bench.db")
        async with open_sqlite(path, durability="normal"):
            pass
        _backlog(path, pending, delayed)
        async with open_sqlite(path, durability="normal") as store:
            queue = store.queue("q")
            await queue.claim("worker")
            started = _wall()
            for _ in range(claims):
                assert await queue.claim("worker") is not None
            return (_wall() - started) / claims


def _spread(title: str, taken: list[float]) -> None:
    cuts = quantiles(taken, n=100, method="inclusive") if len(taken) > 1 else taken * 99
    print(f"  {title:56} p50 {cuts[49] * 1e6:8.0f} us   p99 {cuts[98] * 1e6:8.0f} us")


def main(*, quick: bool) -> None:
    units, rounds = (BATCH, 1) if quick else (2_000, 9)
    contenders: dict[str, Callable[[int], Awaitable[float]]] = {
        "floor": floor_jobs,
        "floor, 100 a transaction": floor_batches,
        "1 task": partial(jobs_of_tasks, 1),
        "8 tasks": partial(jobs_of_tasks, 8),
        "64 tasks": partial(jobs_of_tasks, 64),
        "64 tasks, each alone": partial(each_alone, partial(jobs_of_tasks, 64)),
        "batches": batches,
        "64 tasks, durable": partial(jobs_of_tasks, 64, durability="full"),
        "64 tasks, durable, each alone": partial(each_alone, partial(jobs_of_tasks, 64, durability="full")),
    }
    samples = Samples("enqueue + claim + ack, per job")
    for name in turns(contenders, rounds):
        samples.add(name, on_loop("trio", partial(contenders[name], units)))
    samples.times()
    samples.ratio("1 task", "floor", "at most 5")
    samples.ratio("8 tasks", "floor")
    samples.ratio("64 tasks", "floor")
    samples.ratio("64 tasks, each alone", "64 tasks", "at least 4")
    samples.ratio("batches", "floor, 100 a transaction", "at most 1.5")
    samples.ratio("64 tasks, durable, each alone", "64 tasks, durable", "at least 10")

    transacted: dict[str, Callable[[int], Awaitable[float]]] = {
        "64 tasks": partial(transactions, 64),
        "64 tasks, each alone": partial(each_alone, partial(transactions, 64)),
        "64 tasks, an offset saved": partial(transactions, 64, saving=True),
    }
    samples = Samples("a transaction of 3 staged effects, durable")
    for name in turns(transacted, rounds):
        samples.add(name, on_loop("trio", partial(transacted[name], units)))
    samples.times()
    samples.ratio("64 tasks, each alone", "64 tasks", "at least 5")

    print(
        "\na bystander's write beside 8 transactions that think 10 ms: p50 at most 3,000 us unless they publish first"
    )
    for when in ("never", "last", "first"):
        _spread(f"publishing {when}", trio.run(bystander, 5 if quick else 300, when))

    streams: dict[str, Callable[[int], Awaitable[float]]] = {
        "raw": floor_publishing,
        "stream": publishing,
        "subscriber": subscriber,
    }
    samples = Samples("events published 100 a transaction, read in pages of 1,000 and decoded, per event")
    for name in turns(streams, rounds):
        samples.add(name, on_loop("trio", partial(streams[name], units if quick else 20_000)))
    samples.times()
    samples.ratio("stream", "raw", "at most 1.5")

    print("\na wake between two stores, from the call of notify, its commit included")
    _spread("listener", trio.run(wake, 5 if quick else 1_000))

    few, many, delayed = (100, 1_000, 100) if quick else (1_000, 1_000_000, 100_000)
    claims = 20 if quick else 500
    samples = Samples(f"a claim, {delayed:,} delayed rows of a higher priority beside")
    sizes = {f"{few:,} pending": few, f"{many:,} pending": many}
    for name in turns(sizes, 1 if quick else 3):
        samples.add(name, trio.run(backlog, sizes[name], delayed, claims))
    samples.times()
    samples.ratio(f"{many:,} pending", f"{few:,} pending", "at most 1.3")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
