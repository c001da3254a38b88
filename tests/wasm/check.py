"""The contract's basics on the memory engine in Pyodide: no trio, no driver, no thread, one loop that runs already.

``run.mjs`` awaits ``main()``; an exception is the verdict "broken".
"""

import sys
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from alkstore_trio import JobHandle, Store
    from alkstore_trio.testing import ManualClock


async def notify(store: "Store") -> None:
    async with store.listen("news") as wakes:
        await store.notify("news", {"edition": 1})
        with anyio.fail_after(5):
            assert (await wakes.receive()).channel == "news"
        try:
            wakes.receive_nowait()
        except anyio.WouldBlock:
            pass
        else:
            raise AssertionError("one notify gave two wakes")


async def queue(store: "Store", clock: "ManualClock") -> None:
    mail = store.queue("mail", visibility_timeout=30, max_attempts=2, base_backoff=4)
    low = await mail.enqueue({"to": "ann"})
    high = await mail.enqueue({"to": "bob"}, priority=1)
    first, second = await mail.claim_batch("w", 5)
    assert [first.job.id, second.job.id] == [high, low]
    assert first.job.payload == {"to": "bob"}
    assert await first.ack()
    assert await mail.get_job(high) is None

    assert await second.retry("busy")
    assert await mail.claim("w") is None
    clock.advance(4)
    again = await mail.claim("w")
    assert again is not None
    assert again.job.attempts == 2
    assert await again.retry("busy still")
    dead = await mail.get_job(low)
    assert dead is not None
    assert dead.last_error == "busy still"

    lapsing = await mail.enqueue("x")
    stale = await mail.claim("w")
    clock.advance(30.5)
    fresh = await mail.claim("w")
    assert stale is not None
    assert fresh is not None
    assert fresh.job.id == lapsing
    assert not await stale.ack()
    assert await fresh.ack()


async def transaction(store: "Store") -> None:
    orders, jobs = store.stream("orders"), store.queue("ship")
    async with store.transaction() as tx:
        job_id = await tx.enqueue_tx("ship", 1)
        await tx.publish_tx("orders", 1)
        assert await jobs.get_job(job_id) is None
        assert await orders.read_since(0, 10) == []
    assert await jobs.get_job(job_id) is not None
    assert len(await orders.read_since(0, 10)) == 1

    async with store.begin_tx() as tx:
        discarded = await tx.enqueue_tx("ship", 2)
        await tx.publish_tx("orders", 2)
        await tx.rollback()
    assert await jobs.get_job(discarded) is None
    assert len(await orders.read_since(0, 10)) == 1


async def stream(store: "Store") -> None:
    prices = store.stream("prices")
    await prices.publish(1.5)
    last = await prices.publish_with_key("gold", 2.5)
    events = await prices.read_from_consumer("board", 10)
    assert [(event.key, event.payload) for event in events] == [(None, 1.5), ("gold", 2.5)]
    assert await prices.save_offset("board", last)
    assert await prices.read_from_consumer("board", 10) == []

    async with prices.subscribe("board") as live:
        await prices.publish(3.5)
        with anyio.fail_after(5):
            assert (await live.receive()).payload == 3.5


async def lock(store: "Store", clock: "ManualClock") -> None:
    held = await store.try_lock("door", "ann", 10)
    assert held is not None
    assert await store.try_lock("door", "bob", 10) is None
    clock.advance(10)
    taken = await store.try_lock("door", "bob", 10)
    assert taken is not None
    assert taken.token > held.token
    assert not await held.renew(10)
    assert await taken.release()


async def schedule(store: "Store", clock: "ManualClock") -> None:
    from alkstore_trio.testing import tick

    await store.schedule("beat", "@every 2s", "beats", "tick")
    assert await tick(store) == 0
    clock.advance(4)
    assert await tick(store) == 2
    assert len(await store.queue("beats").claim_batch("w", 10)) == 2


async def outbox(store: "Store") -> None:
    letters = store.outbox("letters")
    sent: list[object] = []

    async def deliver(handle: "JobHandle") -> None:
        sent.append(handle.job.payload)

    await letters.enqueue("hello")
    assert await letters.run_once("w", deliver)
    assert not await letters.run_once("w", deliver)
    assert sent == ["hello"]


async def worker(store: "Store") -> None:
    """A worker waits, is woken, and stops, on a loop that wakes sleepers early and starts no thread."""
    from alkstore_trio import Job, StopToken

    stop, done = StopToken(), anyio.Event()

    async def handle(job: Job) -> None:
        done.set()

    sums = store.queue("sums")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sums.run_worker(handle, stop=stop))
        await anyio.sleep(0.01)
        await sums.enqueue([1, 2])
        with anyio.fail_after(5):
            await done.wait()
        stop.cancel()
    assert (await sums.statistics()).pending == 0


async def main() -> None:
    """Every mechanism once; the package must come without what the platform lacks or a memory store has no use for."""
    ssl = sys.modules.get("ssl")
    for name in ("psycopg", "sqlite3", "ssl", "trio"):
        sys.modules[name] = None  # type: ignore[assignment]  # to import it is an ImportError from here on
    from alkstore_trio import open_memory
    from alkstore_trio.testing import ManualClock

    del sys.modules["ssl"]  # anyio's asyncio backend has a use for it
    if ssl is not None:
        sys.modules["ssl"] = ssl

    clock = ManualClock()
    async with open_memory(clock=clock) as store:
        await notify(store)
        await queue(store, clock)
        await transaction(store)
        await stream(store)
        await lock(store, clock)
        await schedule(store, clock)
        await outbox(store)
        await worker(store)
    print("notify, queue, transaction, stream, lock, schedule, outbox and worker: ok")
