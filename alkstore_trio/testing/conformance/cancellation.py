"""Cancellation: whatever verb is cancelled, wherever it waits, it did nothing or it did all, and the store works on.

Each verb is an arrangement: a block that prepares a fresh store, gives the call, and ends what it began. The call is
cancelled at its first suspension, then, on another fresh store, at its second, and so on until it gets through; what
the store then shows is what it shows without the call, or after it.
"""

import asyncio  # noqa: TID251 what is tested is also a cancellation that anyio knows nothing of
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from ..._errors import Closed
from ..._lock import LockHandle
from ..._outbox import Outbox
from ..._queue import JobHandle, Queue
from ..._receivers import EventReceiver, WakeReceiver
from ..._store import Store
from ..._stream import Stream
from ..._tx import Tx
from ..._values import Job, JobState
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import hold_lease
from .kit import Case

Call = Callable[[], Coroutine[Any, Any, Any]]
Arrangement = Callable[[Store, ManualClock], AbstractAsyncContextManager[Call]]

_MOST = 200  # suspensions; no verb has nearly as many
_CLOSE = 20  # turns of other tasks after which not every single one is tried

_VERBS: dict[str, Arrangement] = {}


def _verb(name: str) -> Callable[[Callable[[Store, ManualClock], AsyncIterator[Call]]], None]:
    """Enter an arrangement in the table."""

    def enter(arrangement: Callable[[Store, ManualClock], AsyncIterator[Call]]) -> None:
        _VERBS[name] = asynccontextmanager(arrangement)

    return enter


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

_BLOCKS: dict[str, Arrangement] = {}


def _block(name: str) -> Callable[[Callable[[Store, ManualClock], AsyncIterator[Call]]], None]:
    """Enter an arrangement whose call may have done all it does when it is cancelled."""

    def enter(arrangement: Callable[[Store, ManualClock], AsyncIterator[Call]]) -> None:
        _BLOCKS[name] = asynccontextmanager(arrangement)

    return enter


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


# How it is done


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


async def _all_that_is(store: Store, clock: ManualClock) -> tuple[Any, ...]:
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


async def _works(store: Store) -> None:
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


class _Stepped:
    """A coroutine, carried on step by step: at its suspension number ``at`` something is called, and it goes on."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, call: Callable[[], object]) -> None:
        self._coroutine = coroutine
        self._at = at
        self._call = call
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            try:
                trap = step()
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions == self._at:
                self._call()
            try:
                answer = yield trap
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, answer)


async def _in_a_scope(call: Call, at: int) -> tuple[bool, bool]:
    """Cancel a call's scope at a suspension, before the call where that is number 0; did it return, was it reached?"""
    with anyio.CancelScope() as scope:
        if at == 0:
            scope.cancel()
        stepped = _Stepped(call(), at, scope.cancel)
        await stepped
        return True, scope.cancel_called
    return False, True


async def _after_turns(call: Call, at: int) -> tuple[bool, bool]:
    """Cancel a call once other tasks have had so many turns; did it return, was it reached?

    An engine that works in a thread lets them have any number: there the later places lie further and further apart.
    """
    turns = at if at < _CLOSE else _CLOSE * 2 ** (at - _CLOSE)
    returned = False
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:

            async def cancel() -> None:
                for _ in range(turns):
                    await checkpoint()
                scope.cancel()

            group.start_soon(cancel)
            await call()
            returned = True
        group.cancel_scope.cancel()
    return returned, scope.cancel_called


async def _by_its_task(call: Call, at: int) -> tuple[bool, bool]:
    """Cancel a call's bare asyncio task at a suspension; did it return, was it reached?"""
    returned = reached = lost = False

    def cancel() -> None:
        nonlocal reached
        reached = True
        task.cancel()

    async def run() -> None:
        nonlocal returned, lost
        await _Stepped(call(), at, cancel)
        returned = True
        await asyncio.sleep(0)
        lost = reached

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    assert not lost, "the cancellation was never delivered"
    if not task.cancelled():
        task.result()
    return returned, reached


async def _by_its_timeout(call: Call, at: int) -> tuple[bool, bool]:
    """Have a call's asyncio timeout expire at a suspension; did it return, was it reached?"""
    returned = False
    timeout = asyncio.timeout(None)
    try:
        async with timeout:
            await _Stepped(call(), at, lambda: timeout.reschedule(0))
            returned = True
    except TimeoutError:
        pass
    await asyncio.sleep(0)  # a cancellation that outlived its timeout would be delivered here
    return returned, timeout.expired()


Way = Callable[[Call, int], Awaitable[tuple[bool, bool]]]


async def _sweep(case: Case, arrangement: Arrangement, way: Way, first: int, all_or_nothing: bool) -> None:
    """Cancel a call in every place that a way finds."""
    seen: list[tuple[Any, ...]] = []
    for called in (False, True):
        async with _opened(case) as (store, clock):
            async with arrangement(store, clock) as call:
                if called:
                    await call()
            seen.append(await _all_that_is(store, clock))
    nothing, everything = seen

    for at in range(first, _MOST):
        for again in (False, True) if all_or_nothing else (False,):
            async with _opened(case) as (store, clock):
                with _spoiling(store):
                    async with arrangement(store, clock) as call:
                        returned, reached = await way(call, at)
                        if again and not returned:
                            await call()
                            returned = True
                there = await _all_that_is(store, clock)
                if not again:
                    await _works(store)
            if returned:
                assert there == everything, f"it returned, cancelled at {at}"
            elif all_or_nothing:
                assert there == nothing, f"it was cancelled at {at}"
            else:
                assert there in (nothing, everything), f"it was cancelled at {at}"
            if not reached:
                return
    raise AssertionError(f"a call with {_MOST} suspensions")


@contextmanager
def _spoiling(store: Store) -> Iterator[None]:
    """On a server a statement that is called off leaves its transaction to be rolled back, and nothing else."""
    try:
        yield
    except RuntimeError as error:
        if not store._engine.traits.has_sql or "can only be rolled back" not in str(error):
            raise


@asynccontextmanager
async def _opened(case: Case) -> AsyncIterator[tuple[Store, ManualClock]]:
    clock = ManualClock()
    async with case.open(clock=clock) as store:
        yield store, clock


# The tests


@pytest.fixture
def restless() -> None:
    """To be overridden for an engine that suspends only now and then: have it suspend at every checkpoint."""


_restlessly = pytest.mark.usefixtures("restless")


@pytest.mark.parametrize("name", sorted({*_VERBS, *_BLOCKS} - {"Tx.rollback"}))  # which never waits
async def test_a_verb_in_a_scope_that_is_cancelled_already_does_not_return(
    case: Case, anyio_backend: str, name: str
) -> None:
    async with _opened(case) as (store, clock), (_VERBS | _BLOCKS)[name](store, clock) as call:
        returned, _ = await _in_a_scope(call, 0)
        assert not returned


@_restlessly
@pytest.mark.parametrize("verb", _VERBS)
async def test_a_verb_that_is_cancelled_anywhere_did_nothing(case: Case, anyio_backend: str, verb: str) -> None:
    with anyio.fail_after(60):
        await _sweep(case, _VERBS[verb], _in_a_scope, 0, all_or_nothing=True)


@_restlessly
@pytest.mark.parametrize("way", [_in_a_scope, _after_turns])
@pytest.mark.parametrize("block", _BLOCKS)
async def test_a_block_that_is_cancelled_anywhere_did_nothing_or_all(
    case: Case, anyio_backend: str, block: str, way: Way
) -> None:
    with anyio.fail_after(60):
        await _sweep(case, _BLOCKS[block], way, 0, all_or_nothing=False)


_on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


@_restlessly
@_on_asyncio
@pytest.mark.parametrize("verb", _VERBS)
async def test_a_verb_whose_bare_task_is_cancelled_anywhere_did_nothing(
    case: Case, anyio_backend: str, verb: str
) -> None:
    with anyio.fail_after(60):
        await _sweep(case, _VERBS[verb], _by_its_task, 1, all_or_nothing=True)


@_restlessly
@_on_asyncio
@pytest.mark.parametrize("way", [_by_its_task, _by_its_timeout])
@pytest.mark.parametrize("block", _BLOCKS)
async def test_a_block_whose_bare_task_is_cancelled_anywhere_did_nothing_or_all(
    case: Case, anyio_backend: str, block: str, way: Way
) -> None:
    with anyio.fail_after(60):
        await _sweep(case, _BLOCKS[block], way, 1, all_or_nothing=False)


@_on_asyncio
async def test_a_bare_task_that_does_nothing_but_verbs_is_cancelled(store: Store, anyio_backend: str) -> None:
    queue, running = store.queue("q"), asyncio.Event()

    async def work() -> None:
        while True:
            await queue.enqueue("x")
            await queue.claim("w")
            running.set()

    task = asyncio.create_task(work())
    await running.wait()
    task.cancel()
    with anyio.fail_after(30):
        await asyncio.wait([task])
    assert task.cancelled()


def test_every_asynchronous_verb_is_cancelled() -> None:
    classes = (Store, Queue, JobHandle, Stream, Outbox, LockHandle, Tx, WakeReceiver, EventReceiver)
    verbs = {
        f"{kind.__name__}.{name}"
        for kind in classes
        for name, verb in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if name == "__anext__" or not name.startswith("_")
    }
    shared = {f"Outbox.{name}" for name in ("get_job", "jobs", "statistics", "sweep_expired", "revive", "delete")}
    elsewhere = {"Store.aclose", "Tx.execute", *shared}  # below, on engines that have it, and as those of `Queue`
    assert verbs == ({*_VERBS, *_BLOCKS} & verbs) | elsewhere


async def test_closing_closes_even_when_it_is_cancelled(store: Store) -> None:
    async with store.listen("c") as wakes, store.stream("s").subscribe("c") as events:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.aclose()
        for receiver in (wakes, events):
            with pytest.raises(Closed):
                await receiver.receive()
    with pytest.raises(Closed):
        await store.notify("c")
