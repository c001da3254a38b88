"""The memory engine: one process, nothing survives.

Every handler is synchronous and never awaits, so an op is atomic on its loop. Tables change only here: an
auto-committed write is applied at once, a transaction's record by the same functions under the engine's lock.
"""

import math
import time
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Any, NoReturn, TypeVar

import anyio
import attrs
from anyio.lowlevel import checkpoint

from .. import _ops as ops
from .._engine import Traits
from .._errors import Closed
from .._loop import call_soon_threadsafe, cancellation_check
from .._ops import Op
from .._rules import queue as jobs
from .._rules import ticks
from .._rules.bounds import deadline
from .._rules.queue import JobRow, Slot
from .._rules.stamps import PLAIN, overridden
from .._values import Schedule, ScheduleState, StreamEvent, StreamStatistics
from .._wake import Hub
from .overlay import Staged, View, effects, enqueued, published
from .tables import QueueTable

__all__ = ["MemoryEngine"]

A = TypeVar("A")

_TURN = 0.0002  # seconds that a run of verbs may keep the loop from other tasks
_SLACK = 64  # empty queues that are always kept
_OFFSET = attrgetter("offset")


class StreamTable:
    """A stream: committed events by offset, saved offsets, and the first offset that each open transaction staged."""

    __slots__ = ("events", "last", "offsets", "staged")

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []
        self.offsets: dict[str, int] = {}
        self.staged: dict[int, int] = {}
        self.last = 0

    def visible(self, reader: int | None = None) -> int:
        """How many events a reader may see: those before whatever a foreign transaction may still commit."""
        if not self.staged:
            return len(self.events)
        horizon = min((first for key, first in self.staged.items() if key != reader), default=math.inf)
        return bisect_left(self.events, horizon, key=_OFFSET)

    def page(self, offset: int, limit: int, reader: int | None) -> list[StreamEvent]:
        """Visible events above an offset."""
        start = bisect_right(self.events, offset, key=_OFFSET)
        return self.events[start : min(start + limit, self.visible(reader))]

    def append(self, event: StreamEvent) -> None:
        """Add an event where its offset belongs."""
        if self.events and self.events[-1].offset > event.offset:
            insort(self.events, event, key=_OFFSET)
        else:
            self.events.append(event)


@attrs.define(eq=False)
class LockRow:
    """Who holds a lock, and until when."""

    owner: str
    token: int
    expires_at: float


@attrs.define(eq=False)
class ScheduleRow:
    """A registered schedule."""

    schedule: Schedule
    interval: float
    body: str
    next_at: float


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
        self._clock = time.time if clock is None else clock
        self._latest = -math.inf  # the last reading of the clock
        self._check = cancellation_check()
        self._turn_ends = 0.0
        self._closed = False
        self._merging = anyio.Lock(fast_acquire=True)
        self._queues: dict[str, QueueTable] = {}
        self._queues_kept = _SLACK
        self._last_job = 0
        self._streams: dict[str, StreamTable] = {}
        self._locks: dict[str, LockRow] = {}
        self._last_token = 0
        self._schedules: dict[str, ScheduleRow] = {}
        self._last_transaction = 0
        self._abandoned: deque[tuple[int, tuple[str, ...]]] = deque()
        self._call_soon = call_soon_threadsafe()

    @property
    def engine(self) -> "MemoryEngine":
        return self

    # A unit that commits at once

    async def do(self, op: Op[A]) -> A:
        if self._closed:
            raise Closed
        if perf_counter() < self._turn_ends:
            await self._check()
        else:
            await self._yield()
            self.check_open()
        now = self._clock()
        if now < self._latest:
            self._rewind(now)
        self._latest = now
        answer: A = _HANDLERS[op.__class__](self, op, now)
        self.hub.fire(op.wakes(answer))
        return answer

    async def idle(self) -> None:
        self.check_open()
        await self.checkpoint()

    async def checkpoint(self) -> None:
        if perf_counter() < self._turn_ends:
            await self._check()
        else:
            await self._yield()

    async def _yield(self) -> None:
        await checkpoint()
        self._turn_ends = perf_counter() + _TURN

    async def reading(self) -> float:
        """Pass a checkpoint and read the clock."""
        self.check_open()
        await self.checkpoint()
        self.check_open()
        return self._read()

    def _read(self) -> float:
        now = self._clock()
        if now < self._latest:
            self._rewind(now)
        self._latest = now
        return now

    def _rewind(self, now: float) -> None:
        for table in self._queues.values():
            table.rewind(now)

    def check_open(self) -> None:
        if self._closed:
            raise Closed

    async def aclose(self) -> None:
        self._closed = True
        self.hub.close()

    async def begin(self) -> "MemoryTx":
        self.check_open()
        self._last_transaction += 1
        return MemoryTx(self, self._last_transaction)

    def join(self, connection: object) -> NoReturn:
        raise RuntimeError("the memory engine has no connection to join: use begin_tx, transaction or with_tx")

    # Queues

    def _queue(self, name: str) -> QueueTable:
        table = self._queues.get(name)
        if table is None:
            if len(self._queues) > self._queues_kept:
                self._queues = {known: kept for known, kept in self._queues.items() if kept.rows}
                self._queues_kept = _SLACK + 2 * len(self._queues)
            table = self._queues[name] = QueueTable()
        return table

    def allocate_ids(self, write: ops.Enqueue) -> list[int]:
        first = self._last_job + 1
        self._last_job += len(write.bodies)
        return list(range(first, self._last_job + 1))

    def apply_enqueue(self, write: ops.Enqueue, ids: list[int], now: float) -> None:
        table = self._queue(write.queue)
        for row in enqueued(write, ids, now):
            table.add(row, self._latest)

    def _enqueue(self, op: ops.Enqueue, now: float) -> list[int]:
        ids = self.allocate_ids(op)
        self.apply_enqueue(op, ids, now)
        return ids

    def get_job(self, op: ops.GetJob, now: float) -> JobRow | None:
        table = self._queues.get(op.queue)
        return None if table is None else table.rows.get(op.id)

    def _jobs(self, op: ops.Jobs, now: float) -> list[JobRow]:
        return self._queue(op.queue).page(op.state, op.limit, op.after)

    def _count_jobs(self, op: ops.CountJobs, now: float) -> Any:
        return self._queue(op.queue).statistics(now)

    def _next_ready_at(self, op: ops.NextReadyAt, now: float) -> ops.NextReady:
        return self._queue(op.queue).next_ready(now)

    def _queue_names(self, op: ops.QueueNames, now: float) -> list[str]:
        return sorted(name for name, table in self._queues.items() if table.rows)

    def _claim(self, op: ops.Claim, now: float) -> list[JobRow]:
        table = self._queues.get(op.queue)
        return [] if table is None else table.claim(op.worker_id, op.n, now)

    def _held(self, queue: str, job_id: int, token: int, now: float) -> tuple[QueueTable, JobRow] | None:
        """The row of a valid claim."""
        table = self._queues.get(queue)
        row = None if table is None else table.rows.get(job_id)
        if table is None or row is None or row.token != token or jobs.slot(row, now) is not Slot.LEASED:
            return None
        return table, row

    def _ack(self, op: ops.Ack, now: float) -> int:
        landed = 0
        for job_id, token in op.claims:
            held = self._held(op.queue, job_id, token, now)
            if held is not None:
                table, row = held
                table.remove(row)
                landed += 1
        return landed

    def _settle(self, op: ops.Fail | ops.Retry | ops.Release | ops.Heartbeat, now: float) -> bool:
        held = self._held(op.queue, op.id, op.token, now)
        if held is None:
            return False
        table, row = held
        table.replace(row, _settled(row, op, now), now)
        return True

    def _sweep(self, op: ops.Sweep, now: float) -> int:
        return self._queue(op.queue).sweep(now)

    def _revive(self, op: ops.Revive, now: float) -> int:
        table = self._queue(op.queue)
        dead = [table.dead[job_id] for job_id in op.ids if job_id in table.dead]
        for row in dead:
            table.replace(row, jobs.revived(row, now), now)
        return len(dead)

    def _delete(self, op: ops.Delete, now: float) -> int:
        table = self._queue(op.queue)
        found = [table.rows[job_id] for job_id in op.ids if job_id in table.rows]
        free = [row for row in found if jobs.slot(row, now) is not Slot.LEASED]
        for row in free:
            table.remove(row)
        return len(free)

    # Streams

    def stream(self, name: str) -> StreamTable:
        """The table of a stream, made when it is first written."""
        table = self._streams.get(name)
        if table is None:
            table = self._streams[name] = StreamTable()
        return table

    def allocate_offsets(self, write: ops.Publish) -> list[int]:
        table = self.stream(write.stream)
        first = table.last + 1
        table.last += len(write.bodies)
        return list(range(first, table.last + 1))

    def apply_publish(self, write: ops.Publish, offsets: list[int], now: float) -> None:
        table = self.stream(write.stream)
        for event in published(write, offsets, now):
            table.append(event)

    def _publish(self, op: ops.Publish, now: float) -> list[int]:
        offsets = self.allocate_offsets(op)
        self.apply_publish(op, offsets, now)
        return offsets

    def apply_save_offset(self, write: ops.SaveOffset, advanced: bool, now: float) -> None:
        self._save_offset(write, now)

    def _save_offset(self, op: ops.SaveOffset, now: float) -> bool:
        if op.offset <= self.saved(op.stream, op.consumer):
            return False
        self.stream(op.stream).offsets[op.consumer] = op.offset
        return True

    def saved(self, stream: str, consumer: str) -> int:
        """A consumer's committed offset."""
        table = self._streams.get(stream)
        return 0 if table is None else table.offsets.get(consumer, 0)

    def page(self, stream: str, offset: int, limit: int, reader: int | None = None) -> list[StreamEvent]:
        """A page of committed events as a reader, a transaction's key or nobody, may see it."""
        table = self._streams.get(stream)
        return [] if table is None else table.page(offset, limit, reader)

    def _get_offset(self, op: ops.GetOffset, now: float) -> int:
        return self.saved(op.stream, op.consumer)

    def _read_since(self, op: ops.ReadSince, now: float) -> list[StreamEvent]:
        return self.page(op.stream, op.offset, op.limit)

    def _read_from_consumer(self, op: ops.ReadFromConsumer, now: float) -> list[StreamEvent]:
        return self.page(op.stream, self.saved(op.stream, op.consumer), op.limit)

    def _count_events(self, op: ops.CountEvents, now: float) -> StreamStatistics:
        table = self._streams.get(op.stream) or StreamTable()
        seen = table.visible()
        first, last = (table.events[0].offset, table.events[seen - 1].offset) if seen else (None, None)
        return StreamStatistics(first, last, dict(table.offsets))

    def _stream_names(self, op: ops.StreamNames, now: float) -> list[str]:
        return sorted(name for name, table in self._streams.items() if table.events or table.offsets)

    def _trim(self, op: ops.Trim, now: float) -> int:
        table = self._streams.get(op.stream) or StreamTable()
        end = min(bisect_right(table.events, op.horizon, key=_OFFSET), table.visible())
        del table.events[:end]
        return end

    def uncover(self, key: int, streams: Sequence[str]) -> list[str]:
        """Forget what a transaction staged; the streams of which more can be seen now."""
        uncovered = []
        for name in streams:
            table = self._streams[name]
            before = table.visible()
            del table.staged[key]
            if table.visible() > before:
                uncovered.append(name)
        return uncovered

    # Notify

    def apply_notify(self, write: ops.Notify, answer: None, now: float) -> None:
        """Nothing is kept: the wake is all."""

    def _notify(self, op: ops.Notify, now: float) -> None:
        return None

    # Locks

    def _try_lock(self, op: ops.TryLock, now: float) -> int | None:
        row = self._locks.get(op.name)
        if row is not None and row.expires_at > now:
            return row.token if row.owner == op.owner else None
        self._last_token += 1
        self._locks[op.name] = LockRow(op.owner, self._last_token, deadline(now, op.ttl))
        return self._last_token

    def _renew(self, op: ops.Renew, now: float) -> bool:
        row = self._locks.get(op.name)
        if row is None or row.token != op.token or row.expires_at <= now:
            return False
        row.expires_at = deadline(now, op.ttl)
        return True

    def _unlock(self, op: ops.Unlock, now: float) -> bool:
        row = self._locks.get(op.name)
        if row is None or row.token != op.token:
            return False
        del self._locks[op.name]
        return True

    # Schedules

    def _add_schedule(self, op: ops.AddSchedule, now: float) -> None:
        known = self._schedules.get(op.name)
        if known is None:
            next_at = ticks.first_boundary(now, op.interval)
        else:
            next_at = ticks.kept_boundary(known.next_at, known.interval, op.interval, now)
        schedule = Schedule(op.name, op.spec, op.queue, op.options)
        self._schedules[op.name] = ScheduleRow(schedule, op.interval, op.body, next_at)

    def _remove_schedule(self, op: ops.RemoveSchedule, now: float) -> bool:
        return self._schedules.pop(op.name, None) is not None

    def _list_schedules(self, op: ops.Schedules, now: float) -> list[ScheduleState]:
        return [ScheduleState(row.schedule, row.next_at) for _, row in sorted(self._schedules.items())]

    def _due_schedules(self, op: ops.DueSchedules, now: float) -> ops.Due:
        due = [
            ops.DueSchedule(name, row.next_at, row.interval)
            for name, row in self._schedules.items()
            if row.next_at <= now
        ]
        due.sort(key=attrgetter("next_at", "name"))
        next_at = min((row.next_at for row in self._schedules.values() if row.next_at > now), default=None)
        return ops.Due(due, next_at, now)

    def _fire(self, op: ops.Fire, now: float) -> ops.Fired | None:
        lease = self._locks.get(op.lease)
        if lease is None or lease.token != op.token or lease.expires_at <= now:
            return None
        row = self._schedules.get(op.name)
        if row is None or row.next_at != op.seen:
            return ops.Fired(0, "")
        row.next_at = op.next_at
        options = row.schedule.opts
        work = ops.Enqueue(
            row.schedule.queue,
            (row.body,) * op.times,
            overridden(PLAIN, options.max_attempts),
            None,
            None,
            options.priority,
            options.expires,
        )
        self.apply_enqueue(work, self.allocate_ids(work), op.at)
        return ops.Fired(op.times, work.queue)

    def _read_clock(self, op: ops.ReadClock, now: float) -> float:
        return now

    # Transactions

    async def merge(self, key: int, staged: Staged | None, streams: Sequence[str]) -> None:
        """Commit a record: its effects, then its wakes."""
        await self.reading()
        async with self._merging:
            record = list(effects(staged))
            for effect in record:
                _APPLIERS[effect.write.__class__](self, effect.write, effect.answer, effect.now)
            uncovered = self.uncover(key, streams)
        self.hub.fire(ops.wakes_of_end([(effect.write, effect.answer) for effect in record], uncovered))

    def discard(self, key: int, streams: Sequence[str]) -> None:
        """Let go of what a transaction staged, waking whom it held back."""
        self.hub.fire(ops.wakes_of_end((), self.uncover(key, streams)))

    def abandon(self, key: int, streams: Sequence[str]) -> None:
        """A transaction was collected as garbage, perhaps in another thread: discard it from the loop."""
        self._abandoned.append((key, tuple(streams)))
        self._call_soon(self._discard_abandoned)

    def _discard_abandoned(self) -> None:
        while self._abandoned:
            self.discard(*self._abandoned.popleft())


class MemoryTx:
    """An open transaction: a staging record, merged whole or dropped."""

    __slots__ = ("_engine", "_key", "_open", "_staged", "_streams", "_view")

    def __init__(self, engine: MemoryEngine, key: int) -> None:
        self._engine = engine
        self._key = key
        self._open = True
        self._staged: Staged | None = None
        self._streams: list[str] = []
        self._view = View()

    def __del__(self) -> None:
        if self._open and self._streams:
            self._engine.abandon(self._key, self._streams)

    @property
    def engine(self) -> MemoryEngine:
        return self._engine

    async def do(self, op: Op[A]) -> A:
        now = await self._engine.reading()
        answer: A = _STAGED_HANDLERS[op.__class__](self, op)
        if isinstance(op, ops.Write):
            self._staged = Staged(op, answer, now, self._staged)
        return answer

    async def idle(self) -> None:
        await self._engine.idle()

    async def commit(self) -> None:
        await self._engine.merge(self._key, self._staged, self._streams)
        self._open = False

    async def rollback(self) -> None:
        self._open = False
        self._engine.discard(self._key, self._streams)

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any]) -> NoReturn:
        raise RuntimeError("the memory engine has no SQL to execute")

    def _overlay(self) -> View:
        self._view.catch_up(self._staged)
        return self._view

    def _enqueue(self, op: ops.Enqueue) -> list[int]:
        return self._engine.allocate_ids(op)

    def _publish(self, op: ops.Publish) -> list[int]:
        offsets = self._engine.allocate_offsets(op)
        staged = self._engine.stream(op.stream).staged
        if offsets and self._key not in staged:
            staged[self._key] = offsets[0]
            self._streams.append(op.stream)
        return offsets

    def _notify(self, op: ops.Notify) -> None:
        return None

    def _save_offset(self, op: ops.SaveOffset) -> bool:
        return op.offset > self._saved(op.stream, op.consumer)

    def _get_job(self, op: ops.GetJob) -> JobRow | None:
        return self._overlay().job(op.queue, op.id) or self._engine.get_job(op, 0)

    def _get_offset(self, op: ops.GetOffset) -> int:
        return self._saved(op.stream, op.consumer)

    def _read_since(self, op: ops.ReadSince) -> list[StreamEvent]:
        return self._page(op.stream, op.offset, op.limit)

    def _read_from_consumer(self, op: ops.ReadFromConsumer) -> list[StreamEvent]:
        return self._page(op.stream, self._saved(op.stream, op.consumer), op.limit)

    def _saved(self, stream: str, consumer: str) -> int:
        return self._overlay().offset(stream, consumer, self._engine.saved(stream, consumer))

    def _page(self, stream: str, offset: int, limit: int) -> list[StreamEvent]:
        committed = self._engine.page(stream, offset, limit, self._key)
        return self._overlay().events(stream, offset, limit, committed)


def _settled(row: JobRow, op: ops.Fail | ops.Retry | ops.Release | ops.Heartbeat, now: float) -> JobRow:
    """What a claimed row becomes."""
    match op:
        case ops.Fail():
            return jobs.failed(row, now, op.error)
        case ops.Retry():
            return jobs.retried(row, now, op.error, op.delay, op.jitter)
        case ops.Release():
            return jobs.released(row, now, op.delay)
        case ops.Heartbeat():
            return jobs.extended(row, now, op.extend)


_HANDLERS: dict[type[Op[Any]], Callable[[MemoryEngine, Any, float], Any]] = {
    ops.Enqueue: MemoryEngine._enqueue,
    ops.Publish: MemoryEngine._publish,
    ops.Notify: MemoryEngine._notify,
    ops.SaveOffset: MemoryEngine._save_offset,
    ops.GetJob: MemoryEngine.get_job,
    ops.GetOffset: MemoryEngine._get_offset,
    ops.ReadSince: MemoryEngine._read_since,
    ops.ReadFromConsumer: MemoryEngine._read_from_consumer,
    ops.Jobs: MemoryEngine._jobs,
    ops.CountJobs: MemoryEngine._count_jobs,
    ops.NextReadyAt: MemoryEngine._next_ready_at,
    ops.CountEvents: MemoryEngine._count_events,
    ops.QueueNames: MemoryEngine._queue_names,
    ops.StreamNames: MemoryEngine._stream_names,
    ops.Schedules: MemoryEngine._list_schedules,
    ops.DueSchedules: MemoryEngine._due_schedules,
    ops.ReadClock: MemoryEngine._read_clock,
    ops.Claim: MemoryEngine._claim,
    ops.Ack: MemoryEngine._ack,
    ops.Fail: MemoryEngine._settle,
    ops.Retry: MemoryEngine._settle,
    ops.Release: MemoryEngine._settle,
    ops.Heartbeat: MemoryEngine._settle,
    ops.Sweep: MemoryEngine._sweep,
    ops.Revive: MemoryEngine._revive,
    ops.Delete: MemoryEngine._delete,
    ops.Trim: MemoryEngine._trim,
    ops.TryLock: MemoryEngine._try_lock,
    ops.Renew: MemoryEngine._renew,
    ops.Unlock: MemoryEngine._unlock,
    ops.AddSchedule: MemoryEngine._add_schedule,
    ops.RemoveSchedule: MemoryEngine._remove_schedule,
    ops.Fire: MemoryEngine._fire,
}

_APPLIERS: dict[type[Op[Any]], Callable[[MemoryEngine, Any, Any, float], None]] = {
    ops.Enqueue: MemoryEngine.apply_enqueue,
    ops.Publish: MemoryEngine.apply_publish,
    ops.Notify: MemoryEngine.apply_notify,
    ops.SaveOffset: MemoryEngine.apply_save_offset,
}

_STAGED_HANDLERS: dict[type[Op[Any]], Callable[[MemoryTx, Any], Any]] = {
    ops.Enqueue: MemoryTx._enqueue,
    ops.Publish: MemoryTx._publish,
    ops.Notify: MemoryTx._notify,
    ops.SaveOffset: MemoryTx._save_offset,
    ops.GetJob: MemoryTx._get_job,
    ops.GetOffset: MemoryTx._get_offset,
    ops.ReadSince: MemoryTx._read_since,
    ops.ReadFromConsumer: MemoryTx._read_from_consumer,
}
