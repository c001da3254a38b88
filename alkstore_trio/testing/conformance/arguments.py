"""Arguments: every name, number and payload, in and out of a transaction; a refusal leaves no trace."""

import inspect
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

import anyio
import attrs
import pytest

from ..._engine import Traits
from ..._errors import Closed, CodecError, InvalidName, InvalidSpec, PayloadTooLarge, ReservedName
from ..._lock import LockHandle
from ..._outbox import Outbox
from ..._queue import JobHandle, Queue
from ..._receivers import EventReceiver
from ..._rules import names
from ..._store import Store
from ..._stream import Stream
from ..._tx import Tx
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import tick
from .driving import being_cancelled
from .kit import Effects

# What the tests stand on


async def _nothing(_: object) -> None:
    """A handler, a delivery, a transaction's function."""


def _stopped() -> StopToken:
    stop = StopToken()
    stop.cancel()
    return stop


@attrs.frozen
class _Ground:
    """A store with one job, message and event, and handles, a claim, a lock and a subscription in hand."""

    store: Store
    queue: Queue
    outbox: Outbox
    stream: Stream
    handle: JobHandle
    lock: LockHandle
    events: EventReceiver


@asynccontextmanager
async def _ground(store: Store) -> AsyncIterator[_Ground]:
    await store.queue("held").enqueue(0)
    handle = await store.queue("held").claim("w")
    lock = await store.try_lock("held", "o", 1_000)
    assert handle is not None
    assert lock is not None
    queue, outbox, stream = store.queue("q"), store.outbox("o"), store.stream("s")
    await queue.enqueue(0)
    await outbox.enqueue(0)
    await stream.publish(0)
    async with stream.subscribe("subscriber") as events:
        yield _Ground(store, queue, outbox, stream, handle, lock, events)


async def _done(outcome: object) -> Any:
    """What a call came to: awaited, or entered and left."""
    if isinstance(outcome, AbstractAsyncContextManager):
        async with outcome as entered:
            return entered
    return await outcome if inspect.isawaitable(outcome) else outcome


async def _refused(error: type[Exception], call: Callable[..., object], *arguments: Any) -> str:
    """That a call is refused with exactly this error, before anything is entered; its message."""

    async def called() -> None:
        outcome = call(*arguments)
        if inspect.isawaitable(outcome):
            await outcome

    with pytest.raises(error) as refusal:
        await called()
    assert refusal.type is error
    return str(refusal.value)


class _Woken:
    """Notes the channels that fire."""

    def __init__(self) -> None:
        self.channels: list[str] = []
        self.marked = anyio.Event()

    def wake(self, channel: str) -> None:
        self.channels.append(channel)
        if channel == "marker":
            self.marked.set()

    def close(self) -> None:
        self.marked.set()


_HEARD = [
    "c",
    "usable",
    "marker",
    names.SCHEDULE_WAKE,
    *map(names.queue_wake, ("q", "held", "ids", names.backing_queue("o"))),
    *map(names.stream_wake, ("s", "ids")),
]


@asynccontextmanager
async def _heard(store: Store) -> AsyncIterator[list[str]]:
    """The channels that fired in the block, known for certain once it is left."""
    woken, hub = _Woken(), store._engine.hub
    for channel in _HEARD:
        hub.attach(channel, woken)
    yield woken.channels
    await store.notify("marker")
    await woken.marked.wait()
    for channel in _HEARD:
        hub.detach(channel, woken)
    woken.channels.remove("marker")


async def _everything(store: Store) -> list[object]:
    queues, streams = await store.queues(), await store.streams()
    return [
        queues,
        [await store.queue(name).jobs() for name in queues if not name.startswith(names.RESERVED_PREFIX)],
        await store.outbox("o").jobs(),
        streams,
        [await store.stream(name).read_since(0, 100) for name in streams],
        [await store.stream(name).statistics() for name in streams],
        await store.schedules(),
    ]


@asynccontextmanager
async def _without_trace(store: Store, *wakes: str) -> AsyncIterator[None]:
    """What happens in the block writes nothing, spends no id and no offset, takes no lock, and wakes just these."""
    queue, stream = store.queue("ids"), store.stream("ids")
    job_id, offset = await queue.enqueue(0), await stream.publish(0)
    before = await _everything(store)
    async with _heard(store) as heard:
        yield
    assert heard == list(wakes)
    assert await _everything(store) == before
    assert [await queue.enqueue(0), await stream.publish(0)] == [job_id + 1, offset + 1]
    lock = await store.try_lock("l", "probe", 1)
    assert lock is not None
    assert await lock.release()


@asynccontextmanager
async def _tx_without_trace(store: Store) -> AsyncIterator[Tx]:
    """The same in a transaction, which is usable afterwards."""
    async with _without_trace(store, "usable"), store.begin_tx() as tx:
        yield tx
        await tx.notify_tx("usable")
        await tx.commit()


_StoreCall = Callable[[Store, Any], object]
_TxCall = Callable[[Tx, Any], object]


def _each(calls: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in calls.items()])


# Names

_SHARED: dict[str, _StoreCall] = {
    "notify": lambda store, name: store.notify(name),
    "listen": lambda store, name: store.listen(name),
    "queue": lambda store, name: store.queue(name),
    "stream": lambda store, name: store.stream(name),
    "outbox": lambda store, name: store.outbox(name),
    "try_lock": lambda store, name: store.try_lock(name, "o", 1),
    "hold_lock": lambda store, name: store.hold_lock(name, 1),
    "schedule": lambda store, name: store.schedule(name, "@every 1s", "q", 0),
    "schedule: queue": lambda store, name: store.schedule("s", "@every 1s", name, 0),
    "unschedule": lambda store, name: store.unschedule(name),
}
_LOCAL: dict[str, _StoreCall] = {
    "claim": lambda store, name: store.queue("q").claim(name),
    "claim_batch": lambda store, name: store.queue("q").claim_batch(name, 1),
    "claim_batch of none": lambda store, name: store.queue("q").claim_batch(name, 0),
    "run_worker": lambda store, name: store.queue("q").run_worker(_nothing, worker_id=name, stop=_stopped()),
    "publish_with_key": lambda store, name: store.stream("s").publish_with_key(name, 0),
    "read_from_consumer": lambda store, name: store.stream("s").read_from_consumer(name, 1),
    "read_from_consumer of none": lambda store, name: store.stream("s").read_from_consumer(name, 0),
    "get_offset": lambda store, name: store.stream("s").get_offset(name),
    "save_offset": lambda store, name: store.stream("s").save_offset(name, 1),
    "subscribe": lambda store, name: store.stream("s").subscribe(name),
    "try_lock: owner": lambda store, name: store.try_lock("l", name, 1),
    "hold_lock: owner": lambda store, name: store.hold_lock("l", 1, owner=name),
    "run_once": lambda store, name: store.outbox("o").run_once(name, _nothing),
    "run_delivery": lambda store, name: store.outbox("o").run_delivery(_nothing, worker_id=name, stop=_stopped()),
}
_SHARED_TX: dict[str, _TxCall] = {
    "enqueue_tx": lambda tx, name: tx.enqueue_tx(name, 0),
    "outbox_enqueue_tx": lambda tx, name: tx.outbox_enqueue_tx(name, 0),
    "publish_tx": lambda tx, name: tx.publish_tx(name, 0),
    "publish_with_key_tx": lambda tx, name: tx.publish_with_key_tx(name, "k", 0),
    "notify_tx": lambda tx, name: tx.notify_tx(name),
    "save_offset_tx": lambda tx, name: tx.save_offset_tx(name, "c", 1),
    "get_job_tx": lambda tx, name: tx.get_job_tx(name, 1),
    "get_offset_tx": lambda tx, name: tx.get_offset_tx(name, "c"),
    "read_since_tx": lambda tx, name: tx.read_since_tx(name, 0, 1),
    "read_since_tx of none": lambda tx, name: tx.read_since_tx(name, 0, 0),
    "read_from_consumer_tx": lambda tx, name: tx.read_from_consumer_tx(name, "c", 1),
}
_LOCAL_TX: dict[str, _TxCall] = {
    "publish_with_key_tx": lambda tx, name: tx.publish_with_key_tx("s", name, 0),
    "save_offset_tx": lambda tx, name: tx.save_offset_tx("s", name, 1),
    "get_offset_tx": lambda tx, name: tx.get_offset_tx("s", name),
    "read_from_consumer_tx": lambda tx, name: tx.read_from_consumer_tx("s", name, 1),
    "read_from_consumer_tx of none": lambda tx, name: tx.read_from_consumer_tx("s", name, 0),
}

_INVALID = [
    "",
    " ",
    "\t\r\n",
    "\x1c\u2003\u3000",  # white space to `str.strip`
    "a\0b",
    "\0",
    "a\ud800",
    "\udfff",
    "x" * 513,
    "é" * 256 + "x",  # 513 bytes
    "💡" * 129,  # 516 bytes
    "__alkstore_\0",
]
_RESERVED = [
    "__alkstore_",
    "__alkstore_x",
    "__alkstore_outbox:o",
    "__alkstore_scheduler",
    "__alkstore_stream_wake:s",
    "__alkstore_queue_wake:q",
    "__alkstore_schedule_wake",
    "__alkstore_listener_reconnected__",
]
_NO_NAME = [5, 1.5, True, b"name", ["name"], object()]
_GOOD = [
    "a",
    "A",
    " a",
    "a ",
    "a b",
    "a\nb",
    "\u200b",  # no white space to `str.strip`
    "é",
    "e\u0301",
    "💡",
    "it's",
    'a "quoted" one',
    "100%",
    "%s%(x)s{}?:$1",
    "a;--",
    "\\",
    "__ALKSTORE_x",
    "_alkstore_x",
    " __alkstore_x",
    "x" * 512,
    "💡" * 128,
]


async def _refused_names(call: Callable[[Any], object], reserved: Iterable[str]) -> None:
    for name in _INVALID:
        assert repr(name)[:20] in await _refused(InvalidName, call, name)
    for name in reserved:
        assert repr(name) in await _refused(ReservedName, call, name)
    for value in _NO_NAME:
        assert type(value).__name__ in await _refused(TypeError, call, value)


@_each(_SHARED)
async def test_a_bad_shared_name_is_refused_without_a_trace(store: Store, call: _StoreCall) -> None:
    async with _without_trace(store):
        await _refused_names(partial(call, store), _RESERVED)
        await _refused(TypeError, call, store, None)


@_each(_LOCAL)
async def test_a_bad_local_name_is_refused_without_a_trace(store: Store, call: _StoreCall) -> None:
    async with _without_trace(store):
        await _refused_names(partial(call, store), ())


@_each(_SHARED_TX)
async def test_a_bad_shared_name_is_refused_in_a_transaction_without_a_trace(store: Store, call: _TxCall) -> None:
    async with _tx_without_trace(store) as tx:
        await _refused_names(partial(call, tx), _RESERVED)
        await _refused(TypeError, call, tx, None)


@_each(_LOCAL_TX)
async def test_a_bad_local_name_is_refused_in_a_transaction_without_a_trace(store: Store, call: _TxCall) -> None:
    async with _tx_without_trace(store) as tx:
        await _refused_names(partial(call, tx), ())
        await _refused(TypeError, call, tx, None)


async def test_a_key_that_is_present_is_a_name(store: Store) -> None:
    async with _without_trace(store):
        await _refused(TypeError, store.stream("s").publish_with_key, None, 0)


async def test_a_refused_name_is_on_its_error(store: Store) -> None:
    with pytest.raises(InvalidName) as invalid:
        store.queue("a\0")
    with pytest.raises(ReservedName) as reserved:
        store.queue("__alkstore_x")
    assert (invalid.value.name, reserved.value.name) == ("a\0", "__alkstore_x")
    assert isinstance(invalid.value, ValueError)
    assert isinstance(reserved.value, ValueError)


@_each(_SHARED)
async def test_a_good_shared_name_is_taken(store: Store, call: _StoreCall) -> None:
    for name in _GOOD:
        await _done(call(store, name))


@_each(_LOCAL)
async def test_a_good_local_name_is_taken_and_may_look_reserved(store: Store, call: _StoreCall) -> None:
    for name in (*_GOOD, *_RESERVED):
        await _done(call(store, name))


@_each(_SHARED_TX)
async def test_a_good_shared_name_is_taken_in_a_transaction(store: Store, call: _TxCall) -> None:
    async with store.transaction() as tx:
        for name in _GOOD:
            await _done(call(tx, name))


@_each(_LOCAL_TX)
async def test_a_good_local_name_is_taken_in_a_transaction_and_may_look_reserved(store: Store, call: _TxCall) -> None:
    async with store.transaction() as tx:
        for name in (*_GOOD, *_RESERVED):
            await _done(call(tx, name))


async def test_names_are_kept_as_they_are(effects: Effects, store: Store) -> None:
    stream = store.stream("s")
    for i, name in enumerate(_GOOD, 1):
        await effects.enqueue(name, i)
        await effects.publish(name, i)
        await effects.publish_with_key("s", name, i)
        assert await effects.save_offset("s", name, i)
        await store.schedule(name, "@every 1h", name, i)
        lock = await store.try_lock(name, name, 1)
        assert lock is not None
        assert (lock.name, lock.owner) == (name, name)
    assert await store.queues() == sorted(_GOOD)
    assert await store.streams() == sorted([*_GOOD, "s"])
    assert [event.key for event in await stream.read_since(0, 100)] == _GOOD
    assert (await stream.statistics()).consumers == {name: i for i, name in enumerate(_GOOD, 1)}
    schedules = [state.schedule for state in await store.schedules()]
    assert [(schedule.name, schedule.queue) for schedule in schedules] == [(name, name) for name in sorted(_GOOD)]
    for i, name in enumerate(_GOOD, 1):
        handle = await store.queue(name).claim(name)
        assert handle is not None
        assert (handle.job.queue, handle.job.worker_id, handle.job.payload) == (name, name, i)
        assert [event.payload for event in await store.stream(name).read_since(0, 100)] == [i]
        assert await stream.get_offset(name) == i


async def test_channels_are_kept_as_they_are(effects: Effects, store: Store) -> None:
    for name in _GOOD:
        async with store.listen(name) as wakes:
            await effects.notify(name)
            assert (await wakes.receive()).channel == name


async def test_an_outbox_stands_on_a_queue_of_its_own_name(effects: Effects, store: Store) -> None:
    for name in _GOOD:
        job = await store.outbox(name).get_job(await effects.outbox_enqueue(name, 0))
        assert job is not None
        assert job.queue == f"__alkstore_outbox:{name}"


class _Named(str, Enum):  # noqa: UP042  # unlike a StrEnum it prints as something else than what it is
    Q = "q"
    O = "o"  # noqa: E741
    S = "s"
    C = "c"


async def test_a_name_of_a_subclass_of_str_is_the_str_that_it_is(effects: Effects, store: Store) -> None:
    async with _heard(store) as heard:
        job_id = await effects.enqueue(_Named.Q, 0)
        message = await effects.outbox_enqueue(_Named.O, 0)
        await effects.publish(_Named.S, 0)
        await effects.notify(_Named.C)
    assert heard == [names.queue_wake("q"), names.queue_wake(names.backing_queue("o")), names.stream_wake("s"), "c"]
    job, sent = await effects.get_job("q", job_id), await store.outbox("o").get_job(message)
    assert job is not None
    assert sent is not None
    assert f"{job.queue} {sent.queue}" == "q __alkstore_outbox:o"
    assert await store.queues() == ["__alkstore_outbox:o", "q"]
    async with store.hold_lock(_Named.C, 1, owner=_Named.O) as lock:
        assert f"{lock.name} {lock.owner}" == "c o"


# Numbers

_Wrong = list[tuple[type[Exception], Any]]

_NO_NUMBER: _Wrong = [
    (TypeError, value) for value in (True, False, "1", b"1", [], 1j, Decimal(1), Fraction(1), object())
]
_NOT_FINITE: _Wrong = [(ValueError, value) for value in (math.nan, math.inf, -math.inf)]
_NO_INT: _Wrong = [*_NO_NUMBER, *((TypeError, value) for value in (1.0, math.nan, timedelta(1), datetime.now(UTC)))]
_NO_SPAN: _Wrong = [*_NO_NUMBER, (TypeError, datetime.now(UTC)), *_NOT_FINITE]
_TOO_WIDE: _Wrong = [(ValueError, value) for value in (2**63, -(2**63) - 1, 10**400, -(10**400), 10**5_000)]
_BELOW_ZERO: _Wrong = [
    (ValueError, value) for value in (-1, -0.001, -5e-324, timedelta(microseconds=-1), -(2**70), -(10**5_000))
]
_ZERO: _Wrong = [(ValueError, value) for value in (0, 0.0, -0.0, timedelta(0))]

_EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 10**400, -(10**400), 10**5_000]
_EXTREME_FLOATS = [0.25, -0.25, 5e-324, sys.float_info.max, -sys.float_info.max]


@attrs.frozen
class _Kind:
    """A kind of number: what it refuses, and what it takes."""

    wrong: _Wrong
    good: list[Any]


_EXTENT = _Kind([*_NO_INT, (TypeError, None)], [0, -1, -(2**70), 1, 2**63, 2**70])
_DURATION = _Kind(
    [*_NO_SPAN, *_ZERO, *_BELOW_ZERO], [0.25, 1, 5e-324, timedelta(milliseconds=900), timedelta.max, 10**400]
)
_NOT_NEGATIVE = _Kind([*_NO_SPAN, *_BELOW_ZERO], [0, 0.0, -0.0, 0.25, 7, timedelta(0), timedelta.max, 10**400])
_SPAN = _Kind(_NO_SPAN, [*_EXTREMES, *_EXTREME_FLOATS, timedelta.max, timedelta.min, timedelta(microseconds=-1)])
_INSTANT = _Kind(
    [
        *_NO_NUMBER,
        *_NOT_FINITE,
        (TypeError, timedelta(1)),
        (TypeError, datetime.now(UTC).date()),
        (ValueError, datetime(2024, 2, 29)),  # noqa: DTZ001  # a naive one is the point
    ],
    [
        *_EXTREMES,
        *_EXTREME_FLOATS,
        datetime(2024, 2, 29, tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    ],
)
_STORED = _Kind([*_NO_INT, *_TOO_WIDE, (TypeError, None)], [0, 1, -1, 2**63 - 1, -(2**63)])
_COUNT = _Kind(
    [*_NO_INT, *_TOO_WIDE, *((ValueError, value) for value in (0, -1, -(2**63)))],
    [1, 2, 2**63 - 1],
)
_COUNT_OR_NONE = _Kind([*_NO_INT, *_TOO_WIDE, *((ValueError, value) for value in (-1, -(2**63)))], [0, 1, 2**63 - 1])
_LOOKUP = _Kind([*_NO_INT, (TypeError, None)], _EXTREMES)


@attrs.frozen
class _Number:
    """A numeric argument of a verb."""

    kind: _Kind
    argument: str  # as messages name it
    call: Callable[[Any, Any], object]


def _enqueue_options(**verbs: Callable[[Any, Any], object]) -> dict[str, _Number]:
    kinds = {"delay": _SPAN, "run_at": _INSTANT, "priority": _STORED, "expires": _SPAN, "max_attempts": _COUNT}

    def giving(verb: Callable[[Any, Any], object], option: str) -> Callable[[Any, Any], object]:
        return lambda place, value: verb(place, {option: value})

    return {
        f"{name}: {option}": _Number(kind, option, giving(verb, option))
        for name, verb in verbs.items()
        for option, kind in kinds.items()
    }


_NUMBERS: dict[str, _Number] = {
    "claim_batch: n": _Number(_EXTENT, "n", lambda g, v: g.queue.claim_batch("w", v)),
    "queue.jobs: limit": _Number(_EXTENT, "limit", lambda g, v: g.queue.jobs(limit=v)),
    "outbox.jobs: limit": _Number(_EXTENT, "limit", lambda g, v: g.outbox.jobs(limit=v)),
    "read_since: limit": _Number(_EXTENT, "limit", lambda g, v: g.stream.read_since(0, v)),
    "read_from_consumer: limit": _Number(_EXTENT, "limit", lambda g, v: g.stream.read_from_consumer("c", v)),
    "try_lock: ttl": _Number(_DURATION, "ttl", lambda g, v: g.store.try_lock("l", "o", v)),
    "hold_lock: ttl": _Number(_DURATION, "ttl", lambda g, v: g.store.hold_lock("l", v, owner="o")),
    "renew: ttl": _Number(_DURATION, "ttl", lambda g, v: g.lock.renew(v)),
    "heartbeat: extend": _Number(_DURATION, "extend", lambda g, v: g.handle.heartbeat(v)),
    "queue: visibility_timeout": _Number(
        _DURATION, "visibility_timeout", lambda g, v: g.store.queue("q", visibility_timeout=v)
    ),
    "queue: base_backoff": _Number(_NOT_NEGATIVE, "base_backoff", lambda g, v: g.store.queue("q", base_backoff=v)),
    "queue: dead_retention": _Number(
        _NOT_NEGATIVE, "dead_retention", lambda g, v: g.store.queue("q", dead_retention=v)
    ),
    "run_worker: grace": _Number(
        _NOT_NEGATIVE, "grace", lambda g, v: g.queue.run_worker(_nothing, grace=v, stop=_stopped())
    ),
    "run_delivery: grace": _Number(
        _NOT_NEGATIVE, "grace", lambda g, v: g.outbox.run_delivery(_nothing, grace=v, stop=_stopped())
    ),
    "retry: delay": _Number(_SPAN, "delay", lambda g, v: g.handle.retry("again", v)),
    "release: delay": _Number(_SPAN, "delay", lambda g, v: g.handle.release(v)),
    "schedule: expires": _Number(_SPAN, "expires", lambda g, v: g.store.schedule("s", "@every 1s", "q", 0, expires=v)),
    "schedule: priority": _Number(
        _STORED, "priority", lambda g, v: g.store.schedule("s", "@every 1s", "q", 0, priority=v)
    ),
    "save_offset: offset": _Number(_STORED, "offset", lambda g, v: g.stream.save_offset("c", v)),
    "EventReceiver.save_offset: offset": _Number(_STORED, "offset", lambda g, v: g.events.save_offset(v)),
    "schedule: max_attempts": _Number(
        _COUNT, "max_attempts", lambda g, v: g.store.schedule("s", "@every 1s", "q", 0, max_attempts=v)
    ),
    "queue: max_attempts": _Number(_COUNT, "max_attempts", lambda g, v: g.store.queue("q", max_attempts=v)),
    "run_worker: concurrency": _Number(
        _COUNT, "concurrency", lambda g, v: g.queue.run_worker(_nothing, concurrency=v, stop=_stopped())
    ),
    "run_delivery: concurrency": _Number(
        _COUNT, "concurrency", lambda g, v: g.outbox.run_delivery(_nothing, concurrency=v, stop=_stopped())
    ),
    "subscribe: prefetch": _Number(_COUNT, "prefetch", lambda g, v: g.stream.subscribe("c", prefetch=v)),
    "with_tx: attempts": _Number(_COUNT, "attempts", lambda g, v: g.store.with_tx(_nothing, attempts=v)),
    "run_worker: prefetch": _Number(
        _COUNT_OR_NONE, "prefetch", lambda g, v: g.queue.run_worker(_nothing, prefetch=v, stop=_stopped())
    ),
    "queue.get_job: job_id": _Number(_LOOKUP, "job_id", lambda g, v: g.queue.get_job(v)),
    "outbox.get_job: job_id": _Number(_LOOKUP, "job_id", lambda g, v: g.outbox.get_job(v)),
    "queue.jobs: after": _Number(_LOOKUP, "after", lambda g, v: g.queue.jobs(after=v)),
    "outbox.jobs: after": _Number(_LOOKUP, "after", lambda g, v: g.outbox.jobs(after=v)),
    "queue.revive: job_ids": _Number(_LOOKUP, "job id", lambda g, v: g.queue.revive([1, v])),
    "queue.delete: job_ids": _Number(_LOOKUP, "job id", lambda g, v: g.queue.delete([1, v])),
    "outbox.revive: job_ids": _Number(_LOOKUP, "job id", lambda g, v: g.outbox.revive([1, v])),
    "outbox.delete: job_ids": _Number(_LOOKUP, "job id", lambda g, v: g.outbox.delete([1, v])),
    "read_since: offset": _Number(_LOOKUP, "offset", lambda g, v: g.stream.read_since(v, 1)),
    "trim_to: horizon": _Number(_LOOKUP, "horizon", lambda g, v: g.stream.trim_to(v)),
    **_enqueue_options(
        enqueue=lambda g, options: g.queue.enqueue(0, **options),
        enqueue_many=lambda g, options: g.queue.enqueue_many([0, 0], **options),
        enqueue_many_of_none=lambda g, options: g.queue.enqueue_many([], **options),
        outbox_enqueue=lambda g, options: g.outbox.enqueue(0, **options),
    ),
}
_NUMBERS_TX: dict[str, _Number] = {
    "read_since_tx: limit": _Number(_EXTENT, "limit", lambda tx, v: tx.read_since_tx("s", 0, v)),
    "read_from_consumer_tx: limit": _Number(_EXTENT, "limit", lambda tx, v: tx.read_from_consumer_tx("s", "c", v)),
    "save_offset_tx: offset": _Number(_STORED, "offset", lambda tx, v: tx.save_offset_tx("s", "c", v)),
    "get_job_tx: job_id": _Number(_LOOKUP, "job_id", lambda tx, v: tx.get_job_tx("q", v)),
    "read_since_tx: offset": _Number(_LOOKUP, "offset", lambda tx, v: tx.read_since_tx("s", v, 1)),
    **_enqueue_options(
        enqueue_tx=lambda tx, options: tx.enqueue_tx("q", 0, **options),
        outbox_enqueue_tx=lambda tx, options: tx.outbox_enqueue_tx("o", 0, **options),
    ),
}


def _each_number(numbers: dict[str, _Number]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("number", [pytest.param(number, id=name) for name, number in numbers.items()])


async def _refused_numbers(number: _Number, place: object) -> None:
    for error, value in number.kind.wrong:
        message = await _refused(error, number.call, place, value)
        assert number.argument in message
        assert type(value).__name__ in message or repr(value)[:20] in message


@_each_number(_NUMBERS)
async def test_a_bad_number_is_refused_without_a_trace(store: Store, number: _Number) -> None:
    async with _ground(store) as ground, _without_trace(store):
        await _refused_numbers(number, ground)


@_each_number(_NUMBERS_TX)
async def test_a_bad_number_is_refused_in_a_transaction_without_a_trace(store: Store, number: _Number) -> None:
    async with _tx_without_trace(store) as tx:
        await _refused_numbers(number, tx)


async def test_good_numbers_are_taken(store: Store) -> None:
    async with _ground(store) as ground:
        for number in _NUMBERS.values():
            for value in number.kind.good:
                await _done(number.call(ground, value))


async def test_good_numbers_are_taken_in_a_transaction(store: Store) -> None:
    async with store.transaction() as tx:
        for number in _NUMBERS_TX.values():
            for value in number.kind.good:
                await _done(number.call(tx, value))


@_each_number({name: number for name, number in _NUMBERS.items() if number.kind is _EXTENT})
async def test_an_extent_of_zero_or_less_is_empty_and_a_huge_one_is_all(store: Store, number: _Number) -> None:
    async with _ground(store) as ground:
        for value in (0, -1, -(2**70)):
            assert await _done(number.call(ground, value)) == []
        assert len(await _done(number.call(ground, 2**70))) == 1


@_each_number({name: number for name, number in _NUMBERS_TX.items() if number.kind is _EXTENT})
async def test_an_extent_of_zero_or_less_is_empty_in_a_transaction_and_a_huge_one_is_all(
    store: Store, number: _Number
) -> None:
    await store.stream("s").publish(0)
    async with store.begin_tx() as tx:
        for value in (0, -1, -(2**70)):
            assert await _done(number.call(tx, value)) == []
        assert len(await _done(number.call(tx, 2**70))) == 1


@pytest.mark.parametrize(
    ("value", "known"),
    [
        pytest.param(-(10**5_000), True, id="hugely negative"),
        (-(2**63) - 1, True),
        (-1, True),
        (0, True),
        (1, False),
        (2**63, False),
        pytest.param(10**5_000, False, id="huge"),
    ],
)
async def test_an_id_or_an_offset_to_look_for_is_any_int(
    effects: Effects, store: Store, value: int, known: bool
) -> None:
    job_id = await effects.enqueue("q", 0)
    assert await effects.publish("s", 0) == 1
    assert len(await effects.read_since("s", value, 10)) == known
    assert len(await store.queue("q").jobs(after=value)) == known
    assert await effects.get_job("q", value if value != job_id else -value) is None
    assert await store.queue("q").revive([value]) == 0
    assert await store.queue("other").delete([value]) == 0
    assert await store.stream("s").trim_to(value) == (not known)
    assert len(await effects.read_since("s", -(2**70), 10)) == known


def _seconds(value: float | timedelta) -> float:
    """A number of seconds as a float, saturated."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def _shifted(now: float, value: float | timedelta) -> float:
    return min(max(now + _seconds(value), -sys.float_info.max), sys.float_info.max)


async def test_a_relative_boundary_is_total_and_saturates(effects: Effects, clock: ManualClock) -> None:
    for value in _SPAN.good:
        job = await effects.get_job("q", await effects.enqueue("q", 0, delay=value, expires=value))
        assert job is not None
        assert (job.run_at, job.expires_at) == (_shifted(clock(), value), _shifted(clock(), value))
        assert (type(job.run_at), type(job.expires_at)) == (float, float)


async def test_an_absolute_boundary_is_total_and_saturates(effects: Effects) -> None:
    for value in _INSTANT.good:
        job = await effects.get_job("q", await effects.enqueue("q", 0, run_at=value))
        assert job is not None
        assert job.run_at == (value.timestamp() if isinstance(value, datetime) else _seconds(value))
        assert type(job.run_at) is float


async def test_what_is_due_at_an_extreme_is_claimed_in_order(effects: Effects, store: Store) -> None:
    later = [await effects.enqueue("q", 0, run_at=value) for value in (10**400, 2**63 - 1)]
    first = await effects.enqueue("q", 0, run_at=-(10**400))
    second = await effects.enqueue("q", 0, run_at=-(2**63))
    last = await effects.enqueue("q", 0, priority=-(2**63), delay=-1)
    urgent = await effects.enqueue("q", 0, priority=2**63 - 1)
    claims = await store.queue("q").claim_batch("w", 10)
    assert [handle.job.id for handle in claims] == [urgent, first, second, last]
    assert await store.queue("q").ack_batch(claims) == 4
    assert await store.queue("q").next_ready_at() == float(2**63 - 1)
    assert [job.id for job in await store.queue("q").jobs()] == later


async def test_a_saved_offset_may_be_any_of_64_bits(effects: Effects) -> None:
    assert await effects.save_offset("s", "c", -(2**63)) is False
    assert await effects.get_offset("s", "c") == 0
    assert await effects.save_offset("s", "c", 2**63 - 1) is True
    assert await effects.get_offset("s", "c") == 2**63 - 1
    assert await effects.read_from_consumer("s", "c", 10) == []


# Payloads


def _nested(levels: int, kind: type[list[Any]] | type[dict[str, Any]] = list) -> Any:
    value: Any = kind()
    for _ in range(levels - 1):
        value = [value] if kind is list else {"k": value}
    return value


def _circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


_MOST_DIGITS = sys.get_int_max_str_digits()

_NO_JSON: list[Any] = [
    math.nan,
    [math.inf],
    {"a": {"b": -math.inf}},
    {math.nan: 1},
    "\ud800",
    ["é", {"a": "b\udfff"}],
    {"\udc00": 1},
    b"x",
    {b"x": 1},
    {(1, 2): 1},
    {1, 2},
    object(),
    [[object()]],
    int,
    datetime(2024, 2, 29, tzinfo=UTC),
    Decimal(1),
    1j,
    (i for i in range(3)),
    10**_MOST_DIGITS,  # one digit more
    _nested(100_000),  # past what any interpreter's encoder takes
    _circular(),
]
_PAYLOADS: dict[str, _StoreCall] = {
    "enqueue": lambda store, payload: store.queue("q").enqueue(payload),
    "enqueue_many": lambda store, payload: store.queue("q").enqueue_many([0, payload]),
    "outbox.enqueue": lambda store, payload: store.outbox("o").enqueue(payload),
    "publish": lambda store, payload: store.stream("s").publish(payload),
    "publish_with_key": lambda store, payload: store.stream("s").publish_with_key("k", payload),
    "publish_many": lambda store, payload: store.stream("s").publish_many([0, payload]),
    "notify": lambda store, payload: store.notify("c", payload),
    "schedule": lambda store, payload: store.schedule("s", "@every 1s", "q", payload),
}
_PAYLOADS_TX: dict[str, _TxCall] = {
    "enqueue_tx": lambda tx, payload: tx.enqueue_tx("q", payload),
    "outbox_enqueue_tx": lambda tx, payload: tx.outbox_enqueue_tx("o", payload),
    "publish_tx": lambda tx, payload: tx.publish_tx("s", payload),
    "publish_with_key_tx": lambda tx, payload: tx.publish_with_key_tx("s", "k", payload),
    "notify_tx": lambda tx, payload: tx.notify_tx("c", payload),
}


@_each(_PAYLOADS)
async def test_a_payload_that_is_no_json_is_refused_without_a_trace(store: Store, call: _StoreCall) -> None:
    async with _without_trace(store):
        for payload in _NO_JSON:
            await _refused(CodecError, call, store, payload)


@_each(_PAYLOADS_TX)
async def test_a_payload_that_is_no_json_is_refused_in_a_transaction_without_a_trace(
    store: Store, call: _TxCall
) -> None:
    async with _tx_without_trace(store) as tx:
        for payload in _NO_JSON:
            await _refused(CodecError, call, tx, payload)


_BODIES: dict[str, tuple[Any, str]] = {
    "null": (None, "null"),
    "true": (True, "true"),
    "int": (-12, "-12"),
    "an int beyond 64 bits": (-(2**100), "-1267650600228229401496703205376"),
    "an int at the digit limit": (-int("9" * _MOST_DIGITS), "-" + "9" * _MOST_DIGITS),
    "floats": (
        [1.0, -0.0, 0.1, 1e16, 5e-324, 1.7976931348623157e308],
        "[1.0,-0.0,0.1,1e+16,5e-324,1.7976931348623157e+308]",
    ),
    "an empty string": ("", '""'),
    "escapes": ('"\\/\b\f\n\r\t', r'"\"\\/\b\f\n\r\t"'),
    "NUL and controls": ("a\0b\x1f\x7f", '"a\\u0000b\\u001f\x7f"'),
    "not ASCII": ("é\u2028\ufeff💡\uffff", '"é\u2028\ufeff💡\uffff"'),
    "empty ones": ([[], {}], "[[],{}]"),
    "blanks within": ({"a b": [" ", 1]}, '{"a b":[" ",1]}'),
    "keys in their order": ({"b": 1, "a": 2, "é": 3}, '{"b":1,"a":2,"é":3}'),
    "a tuple": ((1, (2,)), "[1,[2]]"),
    "keys that are no strings": ({2: 0, None: 1, True: 2, 1.5: 3}, '{"2":0,"null":1,"true":2,"1.5":3}'),
    "200 lists deep": (_nested(200), "[" * 200 + "]" * 200),
    "200 objects deep": (_nested(200, dict), '{"k":' * 199 + "{}" + "}" * 199),
    "2 MiB": ("x" * 2**21, '"' + "x" * 2**21 + '"'),
    "2 MiB that is not ASCII": (["é" * 2**20], '["' + "é" * 2**20 + '"]'),
}


@pytest.mark.parametrize(("payload", "body"), [pytest.param(*bodies, id=name) for name, bodies in _BODIES.items()])
async def test_a_payload_is_stored_as_the_same_bytes_by_every_verb(
    store: Store, clock: ManualClock, payload: Any, body: str
) -> None:
    queue, stream, outbox = store.queue("q"), store.stream("s"), store.outbox("o")
    await queue.enqueue(payload)
    await queue.enqueue_many([payload, payload])
    await outbox.enqueue(payload)
    await stream.publish(payload)
    await stream.publish_with_key("k", payload)
    await stream.publish_many([payload, payload])
    await store.schedule("s", "@every 1s", "q", payload)
    async with store.transaction() as tx:
        job_id = await tx.enqueue_tx("q", payload)
        staged_job = await tx.get_job_tx("q", job_id)
        await tx.outbox_enqueue_tx("o", payload)
        await tx.publish_tx("s", payload)
        await tx.publish_with_key_tx("s", "k", payload)
        [*_, staged_event] = await tx.read_since_tx("s", 0, 10)
    assert staged_job is not None
    clock.advance(1)
    assert await tick(store) == 1
    jobs = [*await queue.jobs(), *await outbox.jobs()]
    events = await stream.read_since(0, 10)
    assert (len(jobs), len(events)) == (7, 6)
    bodies = {staged_job.body, staged_event.body, *(job.body for job in jobs), *(event.body for event in events)}
    assert len(bodies) == 1  # said first, since the next line's message may be very long
    assert (bodies == {body}) is True
    [last, *_] = jobs
    assert (last.payload == events[-1].payload) is True


@pytest.mark.parametrize("name", [name for name in _BODIES if name not in ("a tuple", "keys that are no strings")])
async def test_a_payload_that_is_plain_json_round_trips(effects: Effects, name: str) -> None:
    payload, _ = _BODIES[name]
    job = await effects.get_job("q", await effects.enqueue("q", payload))
    await effects.publish("s", payload)
    [event] = await effects.read_since("s", 0, 1)
    assert job is not None
    assert (job.payload == payload) is True
    assert (event.payload == payload) is True


async def test_a_notify_payload_is_too_large_above_the_engines_limit_alone(
    effects: Effects, store: Store, traits: Traits
) -> None:
    async with _heard(store) as heard:
        if traits.notify_limit is None:
            await effects.notify("c", "x" * 2**21)
        else:
            await effects.notify("c", "é" * ((traits.notify_limit - 3) // 2) + "x" * ((traits.notify_limit - 2) % 2))
    assert heard == ["c"]
    if traits.notify_limit is not None:
        async with _without_trace(store):
            for payload in ("x" * (traits.notify_limit - 1), "x" * 2**21):
                with pytest.raises(PayloadTooLarge) as refusal:
                    await effects.notify("c", payload)
                assert (refusal.value.limit, refusal.value.size) == (traits.notify_limit, len(payload) + 2)


# The order of checks

_Step = tuple[type[Exception], Callable[[Any], object]]

_ORDERS: dict[str, list[_Step]] = {
    "queue": [
        (InvalidName, lambda g: g.store.queue("", visibility_timeout=0)),
        (ValueError, lambda g: g.store.queue("q", visibility_timeout=0)),
        (Closed, lambda g: g.store.queue("q")),
    ],
    "stream": [(ReservedName, lambda g: g.store.stream("__alkstore_")), (Closed, lambda g: g.store.stream("s"))],
    "outbox": [(ReservedName, lambda g: g.store.outbox("__alkstore_")), (Closed, lambda g: g.store.outbox("o"))],
    "queues": [(Closed, lambda g: g.store.queues())],
    "streams": [(Closed, lambda g: g.store.streams())],
    "schedules": [(Closed, lambda g: g.store.schedules())],
    "begin_tx": [(Closed, lambda g: g.store.begin_tx())],
    "transaction": [(Closed, lambda g: g.store.transaction())],
    "with_tx": [
        (TypeError, lambda g: g.store.with_tx(None)),
        (ValueError, lambda g: g.store.with_tx(_nothing, attempts=0)),
        (Closed, lambda g: g.store.with_tx(_nothing)),
    ],
    "notify": [
        (InvalidName, lambda g: g.store.notify("", object())),
        (CodecError, lambda g: g.store.notify("c", object())),
        (Closed, lambda g: g.store.notify("c")),
    ],
    "listen": [(InvalidName, lambda g: g.store.listen("")), (Closed, lambda g: g.store.listen("c"))],
    "try_lock": [
        (InvalidName, lambda g: g.store.try_lock("", "o", True)),
        (InvalidName, lambda g: g.store.try_lock("l", "", True)),
        (TypeError, lambda g: g.store.try_lock("l", "o", True)),
        (Closed, lambda g: g.store.try_lock("l", "o", 1)),
    ],
    "hold_lock": [
        (InvalidName, lambda g: g.store.hold_lock("", 0, owner="o")),
        (InvalidName, lambda g: g.store.hold_lock("l", 0, owner="")),
        (ValueError, lambda g: g.store.hold_lock("l", 0)),
        (Closed, lambda g: g.store.hold_lock("l", 1)),
    ],
    "LockHandle": [
        (ValueError, lambda g: g.lock.renew(0)),
        (Closed, lambda g: g.lock.renew(1)),
        (Closed, lambda g: g.lock.release()),
    ],
    "schedule": [
        (InvalidName, lambda g: g.store.schedule("", "* * * * *", "__alkstore_", object(), priority=True)),
        (ReservedName, lambda g: g.store.schedule("s", "* * * * *", "__alkstore_", object(), priority=True)),
        (InvalidSpec, lambda g: g.store.schedule("s", "* * * * *", "q", object(), priority=True)),
        (CodecError, lambda g: g.store.schedule("s", "@every 1s", "q", object(), priority=True)),
        (TypeError, lambda g: g.store.schedule("s", "@every 1s", "q", 0, priority=True)),
        (ValueError, lambda g: g.store.schedule("s", "@every 1s", "q", 0, expires=math.nan)),
        (ValueError, lambda g: g.store.schedule("s", "@every 1s", "q", 0, max_attempts=0)),
        (Closed, lambda g: g.store.schedule("s", "@every 1s", "q", 0)),
    ],
    "unschedule": [(InvalidName, lambda g: g.store.unschedule("")), (Closed, lambda g: g.store.unschedule("s"))],
    "run_schedules": [(Closed, lambda g: g.store.run_schedules())],
    "enqueue": [
        (CodecError, lambda g: g.queue.enqueue(object(), delay=math.nan)),
        (ValueError, lambda g: g.queue.enqueue(0, delay=math.nan)),
        (Closed, lambda g: g.queue.enqueue(0)),
    ],
    "enqueue_many": [
        (CodecError, lambda g: g.queue.enqueue_many([0, object()], delay=math.nan)),
        (ValueError, lambda g: g.queue.enqueue_many([0], delay=math.nan)),
        (Closed, lambda g: g.queue.enqueue_many([0])),
        (Closed, lambda g: g.queue.enqueue_many([])),
    ],
    "claim": [(InvalidName, lambda g: g.queue.claim("")), (Closed, lambda g: g.queue.claim("w"))],
    "claim_batch": [
        (InvalidName, lambda g: g.queue.claim_batch("", 1.0)),
        (TypeError, lambda g: g.queue.claim_batch("w", 1.0)),
        (Closed, lambda g: g.queue.claim_batch("w", 1)),
        (Closed, lambda g: g.queue.claim_batch("w", 0)),
    ],
    "ack_batch": [(TypeError, lambda g: g.queue.ack_batch([1])), (Closed, lambda g: g.queue.ack_batch([]))],
    "get_job": [(TypeError, lambda g: g.queue.get_job("1")), (Closed, lambda g: g.queue.get_job(1))],
    "jobs": [
        (TypeError, lambda g: g.queue.jobs("dead")),
        (TypeError, lambda g: g.queue.jobs(limit=1.0)),
        (TypeError, lambda g: g.queue.jobs(after="1")),
        (Closed, lambda g: g.queue.jobs()),
        (Closed, lambda g: g.queue.jobs(limit=0)),
    ],
    "statistics": [(Closed, lambda g: g.queue.statistics())],
    "next_ready_at": [(Closed, lambda g: g.queue.next_ready_at())],
    "sweep_expired": [(Closed, lambda g: g.queue.sweep_expired())],
    "revive": [
        (TypeError, lambda g: g.queue.revive([1.0])),
        (Closed, lambda g: g.queue.revive([1])),
        (Closed, lambda g: g.queue.revive([])),
    ],
    "delete": [
        (TypeError, lambda g: g.queue.delete([1.0])),
        (Closed, lambda g: g.queue.delete([1])),
        (Closed, lambda g: g.queue.delete([])),
    ],
    "run_worker": [
        (InvalidName, lambda g: g.queue.run_worker(_nothing, worker_id="", concurrency=0)),
        (ValueError, lambda g: g.queue.run_worker(_nothing, concurrency=0)),
        (ValueError, lambda g: g.queue.run_worker(_nothing, prefetch=-1)),
        (ValueError, lambda g: g.queue.run_worker(_nothing, grace=-1)),
        (TypeError, lambda g: g.queue.run_worker(None)),
        (Closed, lambda g: g.queue.run_worker(_nothing)),
    ],
    "JobHandle": [
        (TypeError, lambda g: g.handle.retry(5, math.nan)),
        (ValueError, lambda g: g.handle.retry("again", math.nan)),
        (Closed, lambda g: g.handle.retry("again")),
        (TypeError, lambda g: g.handle.fail(5)),
        (Closed, lambda g: g.handle.fail("no")),
        (ValueError, lambda g: g.handle.release(math.inf)),
        (Closed, lambda g: g.handle.release()),
        (ValueError, lambda g: g.handle.heartbeat(0)),
        (Closed, lambda g: g.handle.heartbeat()),
        (Closed, lambda g: g.handle.ack()),
    ],
    "outbox.enqueue": [
        (CodecError, lambda g: g.outbox.enqueue(object(), delay=math.nan)),
        (ValueError, lambda g: g.outbox.enqueue(0, delay=math.nan)),
        (Closed, lambda g: g.outbox.enqueue(0)),
    ],
    "run_once": [
        (InvalidName, lambda g: g.outbox.run_once("", _nothing)),
        (Closed, lambda g: g.outbox.run_once("w", _nothing)),
    ],
    "run_delivery": [
        (InvalidName, lambda g: g.outbox.run_delivery(_nothing, worker_id="", concurrency=0)),
        (ValueError, lambda g: g.outbox.run_delivery(_nothing, concurrency=0)),
        (Closed, lambda g: g.outbox.run_delivery(_nothing)),
    ],
    "publish": [
        (CodecError, lambda g: g.stream.publish(object())),
        (Closed, lambda g: g.stream.publish(0)),
    ],
    "publish_with_key": [
        (InvalidName, lambda g: g.stream.publish_with_key("", object())),
        (CodecError, lambda g: g.stream.publish_with_key("k", object())),
        (Closed, lambda g: g.stream.publish_with_key("k", 0)),
    ],
    "publish_many": [
        (CodecError, lambda g: g.stream.publish_many([object()])),
        (Closed, lambda g: g.stream.publish_many([0])),
        (Closed, lambda g: g.stream.publish_many([])),
    ],
    "read_since": [
        (TypeError, lambda g: g.stream.read_since(0.0, 1)),
        (TypeError, lambda g: g.stream.read_since(0, 1.0)),
        (Closed, lambda g: g.stream.read_since(0, 1)),
        (Closed, lambda g: g.stream.read_since(0, 0)),
    ],
    "read_from_consumer": [
        (InvalidName, lambda g: g.stream.read_from_consumer("", 1.0)),
        (TypeError, lambda g: g.stream.read_from_consumer("c", 1.0)),
        (Closed, lambda g: g.stream.read_from_consumer("c", 1)),
        (Closed, lambda g: g.stream.read_from_consumer("c", 0)),
    ],
    "get_offset": [(InvalidName, lambda g: g.stream.get_offset("")), (Closed, lambda g: g.stream.get_offset("c"))],
    "save_offset": [
        (InvalidName, lambda g: g.stream.save_offset("", 2**63)),
        (ValueError, lambda g: g.stream.save_offset("c", 2**63)),
        (Closed, lambda g: g.stream.save_offset("c", 1)),
    ],
    "trim_to": [(TypeError, lambda g: g.stream.trim_to(1.0)), (Closed, lambda g: g.stream.trim_to(1))],
    "stream.statistics": [(Closed, lambda g: g.stream.statistics())],
    "subscribe": [
        (InvalidName, lambda g: g.stream.subscribe("", prefetch=0)),
        (ValueError, lambda g: g.stream.subscribe("c", prefetch=0)),
        (Closed, lambda g: g.stream.subscribe("c")),
    ],
}
_ORDERS_TX: dict[str, list[_Step]] = {
    "enqueue_tx": [
        (InvalidName, lambda tx: tx.enqueue_tx("", object(), delay=math.nan)),
        (CodecError, lambda tx: tx.enqueue_tx("q", object(), delay=math.nan)),
        (ValueError, lambda tx: tx.enqueue_tx("q", 0, delay=math.nan)),
        (Closed, lambda tx: tx.enqueue_tx("q", 0)),
    ],
    "outbox_enqueue_tx": [
        (InvalidName, lambda tx: tx.outbox_enqueue_tx("", object(), delay=math.nan)),
        (CodecError, lambda tx: tx.outbox_enqueue_tx("o", object(), delay=math.nan)),
        (ValueError, lambda tx: tx.outbox_enqueue_tx("o", 0, delay=math.nan)),
        (Closed, lambda tx: tx.outbox_enqueue_tx("o", 0)),
    ],
    "publish_tx": [
        (InvalidName, lambda tx: tx.publish_tx("", object())),
        (CodecError, lambda tx: tx.publish_tx("s", object())),
        (Closed, lambda tx: tx.publish_tx("s", 0)),
    ],
    "publish_with_key_tx": [
        (ReservedName, lambda tx: tx.publish_with_key_tx("__alkstore_", "", object())),
        (InvalidName, lambda tx: tx.publish_with_key_tx("s", "", object())),
        (CodecError, lambda tx: tx.publish_with_key_tx("s", "k", object())),
        (Closed, lambda tx: tx.publish_with_key_tx("s", "k", 0)),
    ],
    "notify_tx": [
        (InvalidName, lambda tx: tx.notify_tx("", object())),
        (CodecError, lambda tx: tx.notify_tx("c", object())),
        (Closed, lambda tx: tx.notify_tx("c")),
    ],
    "save_offset_tx": [
        (ReservedName, lambda tx: tx.save_offset_tx("__alkstore_", "", 2**63)),
        (InvalidName, lambda tx: tx.save_offset_tx("s", "", 2**63)),
        (ValueError, lambda tx: tx.save_offset_tx("s", "c", 2**63)),
        (Closed, lambda tx: tx.save_offset_tx("s", "c", 1)),
    ],
    "get_job_tx": [
        (InvalidName, lambda tx: tx.get_job_tx("", 1.0)),
        (TypeError, lambda tx: tx.get_job_tx("q", 1.0)),
        (Closed, lambda tx: tx.get_job_tx("q", 1)),
    ],
    "get_offset_tx": [
        (InvalidName, lambda tx: tx.get_offset_tx("", "c")),
        (InvalidName, lambda tx: tx.get_offset_tx("s", "")),
        (Closed, lambda tx: tx.get_offset_tx("s", "c")),
    ],
    "read_since_tx": [
        (InvalidName, lambda tx: tx.read_since_tx("", 0, 1.0)),
        (TypeError, lambda tx: tx.read_since_tx("s", 0, 1.0)),
        (Closed, lambda tx: tx.read_since_tx("s", 0, 1)),
        (Closed, lambda tx: tx.read_since_tx("s", 0, 0)),
    ],
    "read_from_consumer_tx": [
        (ReservedName, lambda tx: tx.read_from_consumer_tx("__alkstore_", "", 1.0)),
        (InvalidName, lambda tx: tx.read_from_consumer_tx("s", "", 1.0)),
        (TypeError, lambda tx: tx.read_from_consumer_tx("s", "c", 1.0)),
        (Closed, lambda tx: tx.read_from_consumer_tx("s", "c", 1)),
        (Closed, lambda tx: tx.read_from_consumer_tx("s", "c", 0)),
    ],
}


def _each_order(orders: dict[str, list[_Step]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("steps", [pytest.param(steps, id=name) for name, steps in orders.items()])


@_each_order(_ORDERS)
async def test_names_then_spec_then_payload_then_numbers_are_checked_and_closed_comes_last(
    store: Store, steps: list[_Step]
) -> None:
    async with _ground(store) as ground:
        await store.aclose()
        for error, call in steps:
            with pytest.raises(error) as refusal:
                await _done(call(ground))
            assert refusal.type is error
            with pytest.raises(error), being_cancelled():
                await _done(call(ground))


@_each_order(_ORDERS_TX)
async def test_names_then_payload_then_numbers_are_checked_in_a_transaction_and_closed_comes_last(
    store: Store, steps: list[_Step]
) -> None:
    async with store.begin_tx() as tx:
        await store.aclose()
        for error, call in steps:
            await _refused(error, call, tx)
            with pytest.raises(error), being_cancelled():
                await _done(call(tx))


@_each_order(_ORDERS_TX)
async def test_names_then_payload_then_numbers_are_checked_before_a_transactions_end(
    store: Store, steps: list[_Step]
) -> None:
    async with store.begin_tx() as tx:
        await tx.rollback()
        for error, call in steps:
            await _refused(RuntimeError if error is Closed else error, call, tx)
