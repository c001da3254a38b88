"""Every asynchronous verb, arranged so that a test can have it fail or be cancelled anywhere.

An arrangement is a block that prepares a fresh store, gives the call, and ends what it began. What became of the call
is what the store then shows: what it shows without the call, or after it.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio
import attrs
from anyio.lowlevel import checkpoint

from ..._queue import JobHandle
from ..._receivers import EventReceiver, WakeReceiver
from ..._store import Store
from ..._tx import Tx
from ..._values import Job, JobState
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import hold_lease

__all__ = ["BLOCKS", "VERBS", "Arrangement", "Call", "all_that_is", "spoiling", "works"]

Call = Callable[[], Coroutine[Any, Any, Any]]
Arrangement = Callable[[Store, ManualClock], AbstractAsyncContextManager[Call]]

VERBS: dict[str, Arrangement] = {}
BLOCKS: dict[str, Arrangement] = {}  # whose call may have done all it does when it is cancelled


def _entered(
    table: dict[str, Arrangement], name: str
) -> Callable[[Callable[[Store, ManualClock], AsyncIterator[Call]]], None]:
    """Enter an arrangement in a table."""

    def enter(arrangement: Callable[[Store, ManualClock], AsyncIterator[Call]]) -> None:
        table[name] = asynccontextmanager(arrangement)

    return enter


_verb = partial(_entered, VERBS)
_block = partial(_entered, BLOCKS)


# Store


@_verb("Store.notify")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async with store.listen("c") as wakes:
        yield lambda: store.notify("c", {"a": 1})
        await _tell(store, wakes)


@_verb("Store.try_lock")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.try_lock("l", "owner", 100)


@_verb("Store.schedule")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.schedule("x", "@every 5s", "q", "x", priority=1)


@_verb("Store.unschedule")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.schedule("x", "@every 5s", "q", "x")
    yield lambda: store.unschedule("x")


@_verb("Store.schedules")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.schedule("x", "@every 5s", "q", "x")
    yield store.schedules


@_verb("Store.queues")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue("x")
    yield store.queues


@_verb("Store.streams")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("s").publish("x")
    yield store.streams


# Queue


@_verb("Queue.enqueue")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.queue("q").enqueue("x", delay=1)


@_verb("Queue.enqueue_many")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.queue("q").enqueue_many("xyz")


@_verb("Queue.claim")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue("x")
    yield lambda: store.queue("q").claim("w")


@_verb("Queue.claim_batch")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue_many("xyz")
    yield lambda: store.queue("q").claim_batch("w", 2)


@_verb("Queue.ack_batch")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue_many("xyz")
    handles = await store.queue("q").claim_batch("w", 2)
    yield lambda: store.queue("q").ack_batch(handles)


@_verb("Queue.get_job")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    job_id = await store.queue("q").enqueue("x")
    yield lambda: store.queue("q").get_job(job_id)


@_verb("Queue.jobs")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue("x")
    yield store.queue("q").jobs


@_verb("Queue.statistics")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue("x")
    yield store.queue("q").statistics


@_verb("Queue.next_ready_at")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue("x", delay=1)
    yield store.queue("q").next_ready_at


@_verb("Queue.sweep_expired")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.queue("q").enqueue_many("xyz", expires=0)
    yield store.queue("q").sweep_expired


@_verb("Queue.revive")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    ids = await _dead(store)
    yield lambda: store.queue("q").revive(ids)


@_verb("Queue.delete")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    ids = await _dead(store)
    yield lambda: store.queue("q").delete(ids)


# JobHandle


@_verb("JobHandle.ack")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield (await _claim(store)).ack


@_verb("JobHandle.fail")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    handle = await _claim(store)
    yield lambda: handle.fail("x")


@_verb("JobHandle.retry")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    handle = await _claim(store)
    yield lambda: handle.retry("x", 5)


@_verb("JobHandle.release")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    handle = await _claim(store)
    yield lambda: handle.release(5)


@_verb("JobHandle.heartbeat")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    handle = await _claim(store)
    yield lambda: handle.heartbeat(500)


# Stream


@_verb("Stream.publish")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.stream("s").publish("x")


@_verb("Stream.publish_with_key")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.stream("s").publish_with_key("k", "x")


@_verb("Stream.publish_many")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.stream("s").publish_many("xyz")


@_verb("Stream.read_since")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("s").publish("x")
    yield lambda: store.stream("s").read_since(0, 10)


@_verb("Stream.read_from_consumer")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("s").publish("x")
    yield lambda: store.stream("s").read_from_consumer("c", 10)


@_verb("Stream.get_offset")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("s").save_offset("c", 3)
    yield lambda: store.stream("s").get_offset("c")


@_verb("Stream.save_offset")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.stream("s").save_offset("c", 3)


@_verb("Stream.trim_to")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("s").publish_many("xyz")
    yield lambda: store.stream("s").trim_to(2)


@_verb("Stream.statistics")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("s").publish("x")
    yield store.stream("s").statistics


# Outbox


@_verb("Outbox.enqueue")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    yield lambda: store.outbox("o").enqueue("x", priority=1)


# LockHandle


@_verb("LockHandle.renew")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    lock = await store.try_lock("l", "owner", 10)
    assert lock is not None
    yield lambda: lock.renew(100)


@_verb("LockHandle.release")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    lock = await store.try_lock("l", "owner", 100)
    assert lock is not None
    yield lock.release


# Tx: the call is cancelled, the transaction commits nevertheless


def _in_transaction(name: str, call: Callable[[Tx], Coroutine[Any, Any, Any]]) -> None:
    @_verb(name)
    async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
        await store.queue("q").enqueue("x")
        await store.stream("s").publish("x")
        async with store.listen("c") as wakes:
            async with store.transaction() as tx:
                yield lambda: call(tx)
            await _tell(store, wakes)


_in_transaction("Tx.enqueue_tx", lambda tx: tx.enqueue_tx("q", "x", delay=1))
_in_transaction("Tx.outbox_enqueue_tx", lambda tx: tx.outbox_enqueue_tx("o", "x"))
_in_transaction("Tx.publish_tx", lambda tx: tx.publish_tx("s", "x"))
_in_transaction("Tx.publish_with_key_tx", lambda tx: tx.publish_with_key_tx("s", "k", "x"))
_in_transaction("Tx.notify_tx", lambda tx: tx.notify_tx("c"))
_in_transaction("Tx.save_offset_tx", lambda tx: tx.save_offset_tx("s", "c", 1))
_in_transaction("Tx.get_job_tx", lambda tx: tx.get_job_tx("q", 1))
_in_transaction("Tx.get_offset_tx", lambda tx: tx.get_offset_tx("s", "c"))
_in_transaction("Tx.read_since_tx", lambda tx: tx.read_since_tx("s", 0, 10))
_in_transaction("Tx.read_from_consumer_tx", lambda tx: tx.read_from_consumer_tx("s", "c", 10))


@_verb("Tx.commit")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async with store.listen("c") as wakes:
        async with store.begin_tx() as tx:
            await _stage_everything(tx)
            yield tx.commit
        await _tell(store, wakes)


@_verb("Tx.rollback")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async with store.listen("c") as wakes:
        async with store.transaction() as tx:
            await _stage_everything(tx)
            yield tx.rollback
        await _tell(store, wakes)


# Receivers


@_verb("WakeReceiver.receive")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async with store.listen("c") as wakes:
        await store.notify("c")
        yield wakes.receive
        await _tell(store, wakes)


@_verb("WakeReceiver.__anext__")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async with store.listen("c") as wakes:
        await store.notify("c")
        yield wakes.__anext__
        await _tell(store, wakes)


@_verb("EventReceiver.receive")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("followed").publish_many("xy")
    async with store.stream("followed").subscribe("c") as events:
        await events.receive()
        yield events.receive
        await _tell(store, events)


@_verb("EventReceiver.__anext__")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    await store.stream("followed").publish_many("xy")
    async with store.stream("followed").subscribe("c") as events:
        await events.receive()
        yield events.__anext__
        await _tell(store, events)


@_verb("EventReceiver.save_offset")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async with store.stream("s").subscribe("c") as events:
        yield lambda: events.save_offset(3)


# What is made of several verbs


@_block("Store.with_tx")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async with store.listen("c") as wakes:
        yield lambda: store.with_tx(_stage_everything)
        await _tell(store, wakes)


@_block("Store.transaction")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def call() -> None:
        async with store.transaction() as tx:
            await _stage_everything(tx)

    async with store.listen("c") as wakes:
        yield call
        await _tell(store, wakes)


@_block("Store.begin_tx")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def call() -> None:
        async with store.begin_tx() as tx:
            await _stage_everything(tx)
            await tx.commit()

    async with store.listen("c") as wakes:
        yield call
        await _tell(store, wakes)


@_block("Store.listen")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def call() -> None:
        async with store.listen("c") as wakes:
            await store.notify("c")
            await wakes.receive()

    yield call


@_block("Stream.subscribe")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def call() -> None:
        async with store.stream("s").subscribe("c") as events:
            await events.save_offset((await events.receive()).offset)

    await store.stream("s").publish("x")
    yield call


@_block("Store.hold_lock")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def call() -> None:
        async with store.hold_lock("l", 100) as lock:
            await store.queue("q").enqueue(lock.name)

    yield call


@_block("LockHandle.__aenter__ and __aexit__")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    lock = await store.try_lock("l", "owner", 100)
    assert lock is not None

    async def call() -> None:
        async with lock:
            await checkpoint()

    async with lock:  # if the call did not enter it, this releases it
        yield call


@_block("Outbox.run_once")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def deliver(handle: JobHandle) -> None:
        await checkpoint()

    await store.outbox("o").enqueue("x")
    yield lambda: store.outbox("o").run_once("w", deliver)


@_block("Outbox.run_once, failing")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def deliver(handle: JobHandle) -> None:
        await checkpoint()
        raise ValueError

    await store.outbox("o").enqueue("x", max_attempts=1)
    yield lambda: store.outbox("o").run_once("w", deliver)


@_block("Outbox.run_delivery")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    def call() -> Coroutine[Any, Any, None]:
        stop = StopToken()

        async def deliver(handle: JobHandle) -> None:
            await checkpoint()
            stop.cancel()

        return store.outbox("o").run_delivery(deliver, stop=stop)

    await store.outbox("o").enqueue("x")
    yield call


@_block("Queue.run_worker")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    def call() -> Coroutine[Any, Any, None]:
        stop = StopToken()

        async def handle(job: Job) -> None:
            await checkpoint()
            stop.cancel()

        return store.queue("q").run_worker(handle, stop=stop)

    await store.queue("q").enqueue("x")
    yield call


@_block("Store.run_schedules")
async def _(store: Store, clock: ManualClock) -> AsyncIterator[Call]:
    async def call() -> None:
        stop = StopToken()

        async def stop_it_once_it_fired() -> None:
            while not (await store.queue("q").statistics()).pending:
                await checkpoint()
            stop.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(stop_it_once_it_fired)
            await store.run_schedules(stop)

    await store.schedule("x", "@every 5s", "q", "x")
    clock.advance(5)
    yield call


# What they are made of, and what shows what became of them


async def _stage_everything(tx: Tx) -> None:
    await tx.notify_tx("c")
    await tx.enqueue_tx("q", "x")
    await tx.outbox_enqueue_tx("o", "x")
    await tx.save_offset_tx("s", "c", 3)
    await tx.publish_tx("s", "x")


async def _claim(store: Store) -> JobHandle:
    await store.queue("q").enqueue("x")
    handle = await store.queue("q").claim("w")
    assert handle is not None
    return handle


async def _dead(store: Store) -> list[int]:
    ids = await store.queue("q").enqueue_many("xyz", expires=0)
    await store.queue("q").sweep_expired()
    return ids


async def _tell(store: Store, receiver: WakeReceiver | EventReceiver) -> None:
    """Put what is left in a receiver where it is looked at."""
    try:
        receiver.receive_nowait()
    except anyio.WouldBlock:
        return
    await store.stream("left").publish("an item")


async def all_that_is(store: Store, clock: ManualClock) -> tuple[Any, ...]:
    seen: list[Any] = [await store.queues(), await store.streams(), await store.schedules()]
    for source in (store.queue("q"), store.outbox("o")):
        jobs = await source.jobs()  # whose ids may have gaps
        seen += [[attrs.evolve(job, id=number) for number, job in enumerate(jobs)], await source.statistics()]
    for name in ("s", "left"):
        seen += [await store.stream(name).read_since(0, 100), await store.stream(name).statistics()]
    free_now = await store.try_lock("l", "another", 1) is not None
    clock.advance(50)  # past the shorter of the windows that are asked for, within the longer
    free_later = await store.try_lock("l", "another", 1) is not None
    return *seen, free_now, free_later, await hold_lease(store, "another", 1) is not None


async def works(store: Store) -> None:
    queue, stream = store.queue("afterwards"), store.stream("afterwards")
    async with store.listen("afterwards") as wakes:
        async with store.transaction() as tx:
            job_id = await tx.enqueue_tx(queue.name, "x")
            await tx.notify_tx("afterwards")
            offset = await tx.publish_tx(stream.name, "x")
        await wakes.receive()
    assert [event.offset for event in await stream.read_since(0, 10)] == [offset]
    handle = await queue.claim("w")
    assert handle is not None
    assert handle.job.id == job_id
    assert handle.job.state is JobState.PROCESSING
    assert await handle.ack()
    assert await store.try_lock("afterwards", "owner", 1) is not None


@contextmanager
def spoiling(store: Store) -> Iterator[None]:
    """Around an arrangement: on a server, what fails or is called off leaves its transaction to be rolled back."""
    try:
        yield
    except RuntimeError as error:
        if not store._engine.traits.has_sql or "can only be rolled back" not in str(error):
            raise
