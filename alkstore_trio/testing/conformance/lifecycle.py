"""Opening and closing: nothing outlives a store, and whatever leaves a block leaves it as itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from ..._errors import AlkstoreError, Closed, DatabaseError, InvalidName, LockLost, ReservedName
from ..._lock import LockHandle
from ..._outbox import Outbox
from ..._queue import JobHandle, Queue
from ..._receivers import EventReceiver
from ..._store import Store
from ..._stream import Stream
from ..._tx import Tx
from ..._waiting import StopToken
from .._clocks import ManualClock
from .driving import being_cancelled
from .kit import Case
from .seam import SEAM_FORMS, SEAM_VERBS


async def _nothing(_: object) -> None:
    """A handler, a delivery, a transaction's function."""


# Closing


async def test_a_store_may_be_closed_early_and_twice(store: Store) -> None:
    await store.aclose()
    await store.aclose()
    with pytest.raises(Closed):
        await store.notify("c")


async def test_two_tasks_may_close_a_store(store: Store) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(store.aclose)
        group.start_soon(store.aclose)
    with pytest.raises(Closed):
        await store.queues()


async def test_a_store_closes_even_when_cancelled(store: Store) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.aclose()
    with pytest.raises(Closed):
        await store.queues()
    await checkpoint()


async def test_closed_is_an_error_of_the_library_and_of_anyio(store: Store) -> None:
    await store.aclose()
    with pytest.raises(AlkstoreError):
        await store.queues()
    with pytest.raises(anyio.ClosedResourceError):
        await store.queues()


async def test_stores_are_closed_each_by_itself(case: Case, store: Store, clock: ManualClock) -> None:
    async with case.open(clock=clock) as other:
        await other.queue("q").enqueue(1)
        assert await store.queues() == []
    await store.queue("q").enqueue(2)
    with pytest.raises(Closed):
        await other.queues()


async def test_an_open_function_acts_when_its_block_is_entered(case: Case, clock: ManualClock) -> None:
    block = case.open(clock=clock)
    async with block as store:
        assert await store.queues() == []


@attrs.frozen
class _Hands:
    """What somebody holds when the store is closed under them."""

    store: Store
    queue: Queue
    stream: Stream
    outbox: Outbox
    handle: JobHandle
    settled: JobHandle
    lock: LockHandle
    events: EventReceiver
    tx: Tx
    ended: Tx


@asynccontextmanager
async def _closed(store: Store) -> AsyncIterator[_Hands]:
    queue, stream, outbox = store.queue("q"), store.stream("s"), store.outbox("o")
    await queue.enqueue_many([1, 2])
    await outbox.enqueue(1)
    handle, settled = await queue.claim_batch("w", 2)
    await settled.ack()
    lock = await store.try_lock("l", "owner", 60)
    assert lock is not None
    async with store.begin_tx() as ended:
        pass
    async with stream.subscribe("consumer") as events, store.begin_tx() as tx:
        await store.aclose()
        yield _Hands(store, queue, stream, outbox, handle, settled, lock, events, tx, ended)


def _enter(block: Callable[[_Hands], AbstractAsyncContextManager[object]]) -> Callable[[_Hands], Awaitable[object]]:
    async def enter(hands: _Hands) -> None:
        async with block(hands):
            pass

    return enter


def _call(function: Callable[[_Hands], object]) -> Callable[[_Hands], Awaitable[object]]:
    async def call(hands: _Hands) -> object:
        return function(hands)

    return call


def _stopped() -> StopToken:
    stop = StopToken()
    stop.cancel()
    return stop


_VERBS: dict[str, Callable[[_Hands], Awaitable[object]]] = {
    "notify": lambda my: my.store.notify("c"),
    "listen": _enter(lambda my: my.store.listen("c")),
    "queue": _call(lambda my: my.store.queue("q")),
    "stream": _call(lambda my: my.store.stream("s")),
    "outbox": _call(lambda my: my.store.outbox("o")),
    "queues": lambda my: my.store.queues(),
    "streams": lambda my: my.store.streams(),
    "try_lock": lambda my: my.store.try_lock("l", "owner", 60),
    "hold_lock": _enter(lambda my: my.store.hold_lock("other", 60)),
    "hold_lock without waiting": _enter(lambda my: my.store.hold_lock("other", 60, wait=False)),
    "schedule": lambda my: my.store.schedule("n", "@every 1s", "q", 1),
    "unschedule": lambda my: my.store.unschedule("n"),
    "schedules": lambda my: my.store.schedules(),
    "run_schedules": lambda my: my.store.run_schedules(),
    "run_schedules, standing by": lambda my: my.store.run_schedules(standby=True),
    "run_schedules, stopped": lambda my: my.store.run_schedules(_stopped()),
    "begin_tx": _enter(lambda my: my.store.begin_tx()),
    "transaction": _enter(lambda my: my.store.transaction()),
    "with_tx": lambda my: my.store.with_tx(_nothing),
    "join": _call(lambda my: my.store.join(object())),  # type: ignore[call-overload]  # closed comes first
    "enqueue": lambda my: my.queue.enqueue(1),
    "enqueue_many": lambda my: my.queue.enqueue_many([1]),
    "enqueue_many of none": lambda my: my.queue.enqueue_many([]),
    "claim": lambda my: my.queue.claim("w"),
    "claim_batch": lambda my: my.queue.claim_batch("w", 1),
    "claim_batch of none": lambda my: my.queue.claim_batch("w", 0),
    "ack_batch": lambda my: my.queue.ack_batch([my.handle]),
    "ack_batch of the settled": lambda my: my.queue.ack_batch([my.settled]),
    "ack_batch of none": lambda my: my.queue.ack_batch([]),
    "get_job": lambda my: my.queue.get_job(1),
    "sweep_expired": lambda my: my.queue.sweep_expired(),
    "queue statistics": lambda my: my.queue.statistics(),
    "next_ready_at": lambda my: my.queue.next_ready_at(),
    "jobs": lambda my: my.queue.jobs(),
    "jobs, none": lambda my: my.queue.jobs(limit=0),
    "revive": lambda my: my.queue.revive([1]),
    "revive of none": lambda my: my.queue.revive([]),
    "delete": lambda my: my.queue.delete([1]),
    "delete of none": lambda my: my.queue.delete([]),
    "run_worker": lambda my: my.queue.run_worker(_nothing),
    "run_worker, stopped": lambda my: my.queue.run_worker(_nothing, stop=_stopped()),
    "ack": lambda my: my.handle.ack(),
    "fail": lambda my: my.handle.fail("x"),
    "retry": lambda my: my.handle.retry("x"),
    "release": lambda my: my.handle.release(),
    "heartbeat": lambda my: my.handle.heartbeat(),
    "ack, settled": lambda my: my.settled.ack(),
    "fail, settled": lambda my: my.settled.fail("x"),
    "retry, settled": lambda my: my.settled.retry("x"),
    "release, settled": lambda my: my.settled.release(),
    "heartbeat, settled": lambda my: my.settled.heartbeat(),
    "publish": lambda my: my.stream.publish(1),
    "publish_with_key": lambda my: my.stream.publish_with_key("key", 1),
    "publish_many": lambda my: my.stream.publish_many([1]),
    "publish_many of none": lambda my: my.stream.publish_many([]),
    "read_since": lambda my: my.stream.read_since(0, 1),
    "read_since of nothing": lambda my: my.stream.read_since(0, 0),
    "read_from_consumer": lambda my: my.stream.read_from_consumer("consumer", 1),
    "read_from_consumer of nothing": lambda my: my.stream.read_from_consumer("consumer", 0),
    "get_offset": lambda my: my.stream.get_offset("consumer"),
    "save_offset": lambda my: my.stream.save_offset("consumer", 1),
    "trim_to": lambda my: my.stream.trim_to(1),
    "stream statistics": lambda my: my.stream.statistics(),
    "subscribe": _enter(lambda my: my.stream.subscribe("consumer")),
    "save_offset of a receiver": lambda my: my.events.save_offset(1),
    "outbox enqueue": lambda my: my.outbox.enqueue(1),
    "run_once": lambda my: my.outbox.run_once("w", _nothing),
    "run_delivery": lambda my: my.outbox.run_delivery(_nothing),
    "outbox get_job": lambda my: my.outbox.get_job(1),
    "renew": lambda my: my.lock.renew(60),
    "lock release": lambda my: my.lock.release(),
    "a lock's block": _enter(lambda my: my.lock),
}


def _in_tx(pick: Callable[[_Hands], Tx], verb: Callable[[Tx], Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    return lambda hands: verb(pick(hands))


_VERBS |= {name: _in_tx(lambda my: my.tx, verb) for name, verb in SEAM_VERBS.items()}
_VERBS |= {f"{name} after the end": _in_tx(lambda my: my.ended, verb) for name, verb in SEAM_VERBS.items()}


@pytest.mark.parametrize("verb", _VERBS.values(), ids=_VERBS)
async def test_every_verb_of_a_closed_store_is_closed_before_anything_else(
    store: Store, verb: Callable[[_Hands], Awaitable[object]]
) -> None:
    async with _closed(store) as hands:
        with pytest.raises(Closed):
            await verb(hands)
        with pytest.raises(Closed), being_cancelled():
            await verb(hands)


_REFUSED: dict[str, tuple[type[Exception], Callable[[_Hands], Any]]] = {
    "notify": (InvalidName, lambda my: my.store.notify("")),
    "listen": (ReservedName, lambda my: my.store.listen("__alkstore_x")),
    "queue": (ValueError, lambda my: my.store.queue("q", max_attempts=0)),
    "stream": (InvalidName, lambda my: my.store.stream(" ")),
    "outbox": (InvalidName, lambda my: my.store.outbox("")),
    "try_lock": (ValueError, lambda my: my.store.try_lock("l", "owner", 0)),
    "hold_lock": (ValueError, lambda my: my.store.hold_lock("l", 0)),
    "unschedule": (ReservedName, lambda my: my.store.unschedule("__alkstore_x")),
    "with_tx": (ValueError, lambda my: my.store.with_tx(_nothing, attempts=0)),
    "claim_batch": (InvalidName, lambda my: my.queue.claim_batch("", 0)),
    "heartbeat, settled": (ValueError, lambda my: my.settled.heartbeat(0)),
    "release, settled": (ValueError, lambda my: my.settled.release(float("nan"))),
    "fail, settled": (TypeError, lambda my: my.settled.fail(None)),  # type: ignore[arg-type]  # it is the point
    "read_since": (TypeError, lambda my: my.stream.read_since(0, 0.0)),  # type: ignore[arg-type]  # it is the point
    "subscribe": (ValueError, lambda my: my.stream.subscribe("consumer", prefetch=0)),
    "renew": (ValueError, lambda my: my.lock.renew(0)),
    "enqueue_tx": (InvalidName, lambda my: my.tx.enqueue_tx("", 1)),
    "enqueue_tx after the end": (InvalidName, lambda my: my.ended.enqueue_tx("", 1)),
}


@pytest.mark.parametrize(("error", "verb"), _REFUSED.values(), ids=_REFUSED)
async def test_arguments_are_checked_before_the_store_is_found_closed(
    store: Store, error: type[Exception], verb: Callable[[_Hands], Any]
) -> None:
    async with _closed(store) as hands:
        with pytest.raises(error):
            await verb(hands)


async def test_a_receiver_of_a_closed_store_is_closed_when_it_is_drained(store: Store) -> None:
    async with _closed(store) as hands:
        with pytest.raises(Closed):
            await hands.events.receive()
        with pytest.raises(Closed):
            hands.events.receive_nowait()
        assert [event async for event in hands.events] == []


async def test_a_store_closed_under_a_transaction_discards_it(store: Store) -> None:
    async with store.begin_tx() as tx:
        await tx.enqueue_tx("q", 1)
        await store.aclose()
    with pytest.raises(Closed):
        async with store.begin_tx():
            pass


async def test_a_transaction_that_cannot_commit_on_a_closed_store_says_so(store: Store) -> None:
    async def body(tx: Tx) -> None:
        await tx.enqueue_tx("q", 1)
        await store.aclose()

    with pytest.raises(Closed):
        await SEAM_FORMS["transaction"](store, body)


# Every block, and every way to leave one

_Block = Callable[[Case, Store], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def _lock(case: Case, store: Store) -> AsyncIterator[LockHandle]:
    lock = await store.try_lock("l", "owner", 60)
    assert lock is not None
    async with lock:
        yield lock


@asynccontextmanager
async def _all(case: Case, store: Store) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for name, block in _BLOCKS.items():
            if name not in ("all of them", "lock"):
                await stack.enter_async_context(block(case, store))
        yield


_BLOCKS: dict[str, _Block] = {
    "open": lambda case, store: case.open(clock=ManualClock()),
    "listen": lambda case, store: store.listen("c"),
    "subscribe": lambda case, store: store.stream("s").subscribe("consumer"),
    "begin_tx": lambda case, store: store.begin_tx(),
    "transaction": lambda case, store: store.transaction(),
    "hold_lock": lambda case, store: store.hold_lock("l", 60),
    "lock": _lock,
    "all of them": _all,
}

_each_block = pytest.mark.parametrize("block", _BLOCKS.values(), ids=_BLOCKS)


class _Own(Exception):
    pass


class _OwnBase(BaseException):
    pass


_ERRORS: list[Callable[[], BaseException]] = [
    partial(_Own, "an Exception"),
    partial(_OwnBase, "a BaseException"),
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    TimeoutError,
    Closed,
    partial(DatabaseError, "its own", retryable=True),
    anyio.WouldBlock,
    anyio.EndOfStream,
    partial(ExceptionGroup, "its own", [_Own()]),
    partial(BaseExceptionGroup, "its own", [_OwnBase(), _Own()]),
]


async def _works(store: Store) -> None:
    """An assertion that nothing was left behind: no task that is being cancelled, no lock, no writer."""
    await checkpoint()
    assert await store.try_lock("l", "another", 60) is not None
    assert await store.stream("s").publish("works") > 0
    async with store.listen("c") as wakes:
        await store.notify("c")
        await wakes.receive()


@pytest.mark.parametrize("make", _ERRORS, ids=lambda make: type(make()).__name__)
@_each_block
async def test_an_error_of_the_body_leaves_a_block_as_itself(
    case: Case, store: Store, block: _Block, make: Callable[[], BaseException]
) -> None:
    error = make()
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # that very error
        async with block(case, store):
            raise error
    assert caught.value is error
    await _works(store)


async def _cancel(scope: anyio.CancelScope) -> None:
    scope.cancel()


async def _meet_deadline(scope: anyio.CancelScope) -> None:
    scope.deadline = anyio.current_time()


_each_interruption = pytest.mark.parametrize("interrupt", [_cancel, _meet_deadline], ids=["cancelled", "deadline"])


@_each_interruption
@_each_block
async def test_an_outer_scope_ends_a_block(
    case: Case, store: Store, block: _Block, interrupt: Callable[[anyio.CancelScope], Awaitable[None]]
) -> None:
    with anyio.move_on_after(3600) as scope:
        async with block(case, store):
            await interrupt(scope)
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    await _works(store)


@_each_block
async def test_a_scope_cancelled_by_another_task_ends_a_block(case: Case, store: Store, block: _Block) -> None:
    inside = anyio.Event()

    async def body() -> None:
        async with block(case, store):
            inside.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(body)
        await inside.wait()
        group.cancel_scope.cancel()
    await _works(store)


@_each_interruption
@_each_block
async def test_an_error_on_the_way_out_of_a_cancelled_block_leaves_it_as_itself(
    case: Case, store: Store, block: _Block, interrupt: Callable[[anyio.CancelScope], Awaitable[None]]
) -> None:
    error = _Own()

    async def body() -> None:
        with anyio.move_on_after(3600) as scope:
            async with block(case, store):
                await interrupt(scope)
                try:
                    await anyio.sleep_forever()
                finally:
                    raise error

    with pytest.raises(_Own) as caught:
        await body()
    assert caught.value is error
    await _works(store)


@_each_interruption
@_each_block
async def test_an_inner_scope_leaves_its_block_alone(
    case: Case, store: Store, block: _Block, interrupt: Callable[[anyio.CancelScope], Awaitable[None]]
) -> None:
    async with block(case, store):
        with anyio.move_on_after(3600) as scope:
            await interrupt(scope)
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        for _ in range(3):
            await checkpoint()
    await _works(store)


@_each_block
async def test_a_block_may_be_left_by_break_and_by_return(case: Case, store: Store, block: _Block) -> None:
    async def give_back() -> str:
        async with block(case, store):
            return "value"

    assert await give_back() == "value"
    while True:
        async with block(case, store):
            break
    await _works(store)


@_each_block
async def test_a_block_in_a_cancelled_scope_has_no_effect(case: Case, store: Store, block: _Block) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with block(case, store):
            await checkpoint()
    assert scope.cancelled_caught
    await _works(store)


# What happens behind the body


async def _lose(store: Store, clock: ManualClock) -> None:
    while True:
        clock.advance(3600)
        await checkpoint()


async def _close(store: Store, clock: ManualClock) -> None:
    await store.aclose()
    await anyio.sleep_forever()


@pytest.mark.parametrize(("trouble", "kind"), [(_lose, LockLost), (_close, Closed)], ids=["lost", "closed"])
@pytest.mark.parametrize("own", [None, _Own(), _OwnBase()], ids=["no error", "an Exception", "a BaseException"])
async def test_an_error_of_the_body_wins_over_what_ended_its_hold(
    store: Store,
    clock: ManualClock,
    trouble: Callable[[Store, ManualClock], Awaitable[None]],
    kind: type[Exception],
    own: BaseException | None,
) -> None:
    async def body() -> None:
        async with store.hold_lock("l", 60):
            try:
                await trouble(store, clock)
            finally:
                if own is not None:
                    raise own

    with pytest.raises(kind if own is None else type(own)) as caught:
        await body()
    assert own is None or caught.value is own


# No task is left


def _tasks() -> set[int]:
    return {task.id for task in anyio.get_running_tasks()}


async def _leave(scope: anyio.CancelScope, store: Store) -> None:
    pass


async def _leave_closed(scope: anyio.CancelScope, store: Store) -> None:
    await store.aclose()
    await anyio.sleep_forever()  # a store closed under a hold ends its body


async def _leave_by_error(scope: anyio.CancelScope, store: Store) -> None:
    raise _Own


async def _leave_by_base_exception(scope: anyio.CancelScope, store: Store) -> None:
    raise _OwnBase


async def _leave_cancelled(scope: anyio.CancelScope, store: Store) -> None:
    scope.cancel()
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("leave", "error"),
    [
        (_leave, None),
        (_leave_closed, Closed),
        (_leave_by_error, _Own),
        (_leave_by_base_exception, _OwnBase),
        (_leave_cancelled, None),
    ],
)
async def test_no_task_and_no_receiver_outlives_a_store(
    case: Case,
    clock: ManualClock,
    leave: Callable[[anyio.CancelScope, Store], Awaitable[None]],
    error: type[BaseException] | None,
) -> None:
    before = _tasks()
    left: list[Callable[[], Awaitable[object]]] = []

    async def body() -> None:
        with anyio.CancelScope() as scope:
            async with (
                case.open(clock=clock) as store,
                store.stream("s").subscribe("consumer") as events,
                store.listen("c") as wakes,
                store.hold_lock("l", 60),
                store.begin_tx() as tx,
            ):
                left.extend([events.receive, wakes.receive, store.queues])
                await tx.enqueue_tx("q", 1)
                assert _tasks() > before
                await leave(scope, store)

    if error is None:
        await body()
    else:
        with pytest.raises(error):
            await body()
    assert _tasks() == before
    for verb in left:
        with pytest.raises(Closed):
            await verb()
