"""The memory engine: one process, nothing survives.

It adds to the tables what they must not know: the clock, cancellation, other tasks, wakes. Between an effect and its
wakes, and between them and the answer, nothing is awaited.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NoReturn, TypeVar

import anyio

from .. import _ops as ops
from .._engine import Traits
from .._errors import Closed
from .._loop import Turns, call_soon_threadsafe
from .._ops import Op
from .._rules.bounds import reading
from .._rules.queue import JobRow
from .._values import StreamEvent
from .._wake import Hub
from .overlay import Staged, View, effects, staged
from .tables import HANDLERS, Tables

__all__ = ["MemoryEngine"]

A = TypeVar("A")


class MemoryEngine:
    """Tables in this process; see `Engine`."""

    traits = Traits(
        counts_wakes=True,
        discarded_ids_are_gaps=True,
        serializes_publishers=False,
        serializes_writers=False,
        notify_limit=None,
        has_sql=False,
        durable=False,
        many_processes=False,
        clock_is_local=True,
    )
    prefetch = 0

    def __init__(self, hub: Hub, clock: Callable[[], float] | None = None) -> None:
        self.hub = hub
        self.sleep: Callable[[float], Awaitable[object]] | None = getattr(clock, "sleep", None)
        self._clock = time.time if clock is None else lambda: reading(clock())
        self._turns = Turns()
        self.checkpoint = self._turns.checkpoint
        self._closed = False
        self._tables = Tables()
        self._merging = anyio.Lock(fast_acquire=True)
        self._last_transaction = 0
        self._abandoned: deque[tuple[int, Sequence[str]]] = deque()
        self._call_soon = call_soon_threadsafe()

    @property
    def engine(self) -> "MemoryEngine":
        return self

    async def do(self, op: Op[A]) -> A:
        if self._closed:
            raise Closed
        turns = self._turns
        if perf_counter() < turns.end:
            check = turns.check
            await check()
        else:
            await turns.pause()
            self.check_open()
        tables, clock = self._tables, self._clock
        now = clock()
        if now < tables.latest:
            tables.rewind(now)
        tables.latest = now
        answer: A = HANDLERS[op.__class__](tables, op, now)
        if self.hub.channels:
            self.hub.fire(op.wakes(answer))
        return answer

    async def idle(self) -> None:
        self.check_open()
        await self.checkpoint()

    def now(self) -> float:
        """The clock's reading after a checkpoint, to which the tables are brought; `do` spares itself the call."""
        self.check_open()
        clock = self._clock
        now = clock()
        if now < self._tables.latest:
            self._tables.rewind(now)
        self._tables.latest = now
        return now

    def check_open(self) -> None:
        if self._closed:
            raise Closed

    async def aclose(self) -> None:
        self._closed = True
        self.hub.close()

    def join(self, connection: object) -> NoReturn:
        raise RuntimeError("the memory engine has no connection to join: use begin_tx, transaction or with_tx")

    async def begin(self) -> "MemoryTx":
        await self.idle()
        self.check_open()
        self._last_transaction += 1
        return MemoryTx(self, self._tables, self._last_transaction)

    def merge(self, key: int, last: Staged | None, streams: Sequence[str]) -> None:
        """Commit a transaction: its effects, then its wakes."""
        self.now()
        self._merging.acquire_nowait()  # never held across an await, so never held here
        try:
            record = effects(last)
            self._tables.apply(record)
            uncovered = self._tables.uncover(key, streams)
            if self.hub.channels:
                self.hub.fire(ops.wakes_of_end([(effect.write, effect.answer) for effect in record], uncovered))
        finally:
            self._merging.release()

    def discard(self, key: int, streams: Sequence[str]) -> None:
        """End a transaction without its effects, waking those from whom it held events back."""
        self.hub.fire(ops.wakes_of_end((), self._tables.uncover(key, streams)))

    def abandon(self, key: int, streams: Sequence[str]) -> None:
        """Discard a transaction that was collected as garbage, perhaps in another thread: leave it to the loop."""
        self._abandoned.append((key, streams))
        self._call_soon(self._discard_abandoned)

    def _discard_abandoned(self) -> None:
        while self._abandoned:
            self.discard(*self._abandoned.popleft())


class MemoryTx:
    """An open transaction: a staging record, merged whole or dropped. Nothing refers to it, so dropping it ends it."""

    __slots__ = ("_engine", "_key", "_open", "_staged", "_streams", "_tables", "_view")

    def __init__(self, engine: MemoryEngine, tables: Tables, key: int) -> None:
        self._engine = engine
        self._tables = tables
        self._key = key
        self._open = True
        self._staged: Staged | None = None
        self._streams: list[str] = []  # those in which it holds events back
        self._view: View | None = None  # made when something is read

    def __del__(self) -> None:
        if self._open and self._streams:
            self._engine.abandon(self._key, self._streams)

    @property
    def engine(self) -> MemoryEngine:
        return self._engine

    async def do(self, op: Op[A]) -> A:
        engine = self._engine
        engine.check_open()  # `idle`, less a coroutine
        await engine.checkpoint()
        now = engine.now()
        answer: A = _HANDLERS[op.__class__](self, op)
        if isinstance(op, ops.Write):
            self._staged = staged(op, answer, now, self._staged)
        return answer

    async def idle(self) -> None:
        await self._engine.idle()

    async def commit(self) -> None:
        await self._engine.idle()
        self._engine.merge(self._key, self._staged, self._streams)
        self._open = False

    async def rollback(self) -> None:
        self._open = False
        self._engine.discard(self._key, self._streams)

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any]) -> NoReturn:
        raise RuntimeError("the memory engine has no SQL to execute")

    def _enqueue(self, op: ops.Enqueue) -> list[int]:
        return self._tables.allocate_ids(op)

    def _publish(self, op: ops.Publish) -> list[int]:
        offsets = self._tables.allocate_offsets(op)
        if offsets and self._tables.hold_back(op.stream, self._key, offsets[0]):
            self._streams.append(op.stream)
        return offsets

    def _notify(self, op: ops.Notify) -> None:
        return None

    def _save_offset(self, op: ops.SaveOffset) -> bool:
        return op.offset > self._saved(op.stream, op.consumer)

    def _get_job(self, op: ops.GetJob) -> JobRow | None:
        return self._overlay().job(op.queue, op.id) or self._tables.job(op.queue, op.id)

    def _get_offset(self, op: ops.GetOffset) -> int:
        return self._saved(op.stream, op.consumer)

    def _read_since(self, op: ops.ReadSince) -> list[StreamEvent]:
        return self._page(op.stream, op.offset, op.limit)

    def _read_from_consumer(self, op: ops.ReadFromConsumer) -> list[StreamEvent]:
        return self._page(op.stream, self._saved(op.stream, op.consumer), op.limit)

    def _overlay(self) -> View:
        if self._view is None:
            self._view = View()
        self._view.catch_up(self._staged)
        return self._view

    def _saved(self, stream: str, consumer: str) -> int:
        return self._overlay().offset(stream, consumer, self._tables.saved(stream, consumer))

    def _page(self, stream: str, offset: int, limit: int) -> list[StreamEvent]:
        committed = self._tables.page(stream, offset, limit, self._key)
        return self._overlay().events(stream, offset, limit, committed)


_HANDLERS: dict[type[Op[Any]], Callable[[MemoryTx, Any], Any]] = {
    ops.Enqueue: MemoryTx._enqueue,
    ops.Publish: MemoryTx._publish,
    ops.Notify: MemoryTx._notify,
    ops.SaveOffset: MemoryTx._save_offset,
    ops.GetJob: MemoryTx._get_job,
    ops.GetOffset: MemoryTx._get_offset,
    ops.ReadSince: MemoryTx._read_since,
    ops.ReadFromConsumer: MemoryTx._read_from_consumer,
}
