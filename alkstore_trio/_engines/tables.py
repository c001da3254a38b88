"""The tables of the memory engine and what every op does to them.

Nothing here awaits or looks at a clock, so an op is atomic. An auto-committed write allocates its number and is applied
at once; a transaction allocates when it stages and is applied, by the same functions, when it commits.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import attrs

from .. import _ops as ops
from .._ops import Op
from .._rules import queue as jobs
from .._rules import ticks
from .._rules.bounds import deadline
from .._rules.queue import LEASED, JobRow
from .._rules.stamps import PLAIN, overridden
from .._values import QueueStatistics, Schedule, ScheduleState, StreamEvent, StreamStatistics
from .outcomes import enqueued, published, settled
from .overlay import Staged
from .queue_table import QueueTable

__all__ = ["HANDLERS", "Tables"]

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

    def up_to(self, offset: int) -> int:
        """How many events have this offset or a lower one: nothing is searched where no number is missing."""
        count = len(self.events)
        least = max(count - max(self.last - offset, 0), 0)  # no more than these numbers were given out above it
        most = min(max(offset, 0), count)  # and no more than these up to it
        return bisect_right(self.events, offset, least, most, key=_OFFSET)

    def visible(self, reader: int | None = None) -> int:
        """How many events a reader may see: those before whatever a foreign transaction may still commit."""
        held_back = [first for key, first in self.staged.items() if key != reader] if self.staged else ()
        return self.up_to(min(held_back) - 1) if held_back else len(self.events)

    def page(self, offset: int, limit: int, reader: int | None) -> list[StreamEvent]:
        """Visible events above an offset."""
        start = self.up_to(offset)
        return self.events[start : min(start + limit, self.visible(reader))]

    def append(self, events: list[StreamEvent]) -> None:
        """Add events of neighbouring offsets where these belong."""
        known = self.events
        if known and known[-1].offset > events[0].offset:
            at = self.up_to(events[0].offset)
            known[at:at] = events
        else:
            known.extend(events)


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


class Tables:
    """All that a memory store holds."""

    def __init__(self) -> None:
        self.latest = -math.inf  # the last reading of the clock
        self._queues: dict[str, QueueTable] = {}
        self._queues_kept = _SLACK
        self._last_job = 0
        self._streams: dict[str, StreamTable] = {}
        self._locks: dict[str, LockRow] = {}
        self._last_token = 0
        self._schedules: dict[str, ScheduleRow] = {}

    def rewind(self, now: float) -> None:
        """The clock stepped back: what time had moved is where it was."""
        for table in self._queues.values():
            table.rewind(now)

    def apply(self, record: Iterable[Staged]) -> None:
        """Make staged effects stand, in order."""
        for effect in record:
            _APPLIERS[effect.write.__class__](self, effect.write, effect.answer, effect.now)

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
        self._last_job = last = self._last_job + len(write.bodies)
        return [first] if last == first else list(range(first, last + 1))

    def _apply_enqueue(self, write: ops.Enqueue, ids: list[int], now: float) -> None:
        if ids:
            table = self._queues.get(write.queue) or self._queue(write.queue)
            table.add(enqueued(write, ids, now), self.latest)

    def _enqueue(self, op: ops.Enqueue, now: float) -> list[int]:
        self._apply_enqueue(op, ids := self.allocate_ids(op), now)
        return ids

    def job(self, queue: str, job_id: int) -> JobRow | None:
        """A committed job."""
        table = self._queues.get(queue)
        return None if table is None else table.rows.get(job_id)

    def _get_job(self, op: ops.GetJob, now: float) -> JobRow | None:
        return self.job(op.queue, op.id)

    def _jobs(self, op: ops.Jobs, now: float) -> list[JobRow]:
        return self._queue(op.queue).page(op.state, op.limit, op.after)

    def _count_jobs(self, op: ops.CountJobs, now: float) -> QueueStatistics:
        return self._queue(op.queue).statistics(now)

    def _next_ready_at(self, op: ops.NextReadyAt, now: float) -> ops.NextReady:
        return self._queue(op.queue).next_ready(now)

    def _queue_names(self, op: ops.QueueNames, now: float) -> list[str]:
        return sorted(name for name, table in self._queues.items() if table.rows)

    def _claim(self, op: ops.Claim, now: float) -> list[JobRow]:
        table = self._queues.get(op.queue)
        return [] if table is None else table.claim(op.worker_id, op.n, now)

    def _ack(self, op: ops.Ack, now: float) -> int:
        table = self._queues.get(op.queue)
        return 0 if table is None else table.ack(op.claims, now)

    def _settle(self, op: ops.Fail | ops.Retry, now: float) -> bool:
        return bool(self._settle_claims(op, ((op.id, op.token),), now))

    def _settle_each(self, op: ops.Release | ops.Heartbeat, now: float) -> list[tuple[int, int]]:
        return self._settle_claims(op, op.claims, now)

    def _settle_claims(
        self, op: ops.Fail | ops.Retry | ops.Release | ops.Heartbeat, claims: Iterable[tuple[int, int]], now: float
    ) -> list[tuple[int, int]]:
        table = self._queues.get(op.queue)
        landed: list[tuple[int, int]] = []
        if table is None:
            return landed
        for claim in claims:
            row = table.held(*claim, now)
            if row is not None:
                table.replace(row, settled(row, op, now), now)
                landed.append(claim)
        return landed

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
        free = [row for row in found if jobs.slot(row, now) is not LEASED]
        for row in free:
            table.remove(row)
        return len(free)

    # Streams

    def _stream(self, name: str) -> StreamTable:
        """The table of a stream, made when it is first written."""
        table = self._streams.get(name)
        if table is None:
            table = self._streams[name] = StreamTable()
        return table

    def allocate_offsets(self, write: ops.Publish) -> list[int]:
        table = self._streams.get(write.stream) or self._stream(write.stream)
        first = table.last + 1
        table.last = last = table.last + len(write.bodies)
        return [first] if last == first else list(range(first, last + 1))

    def _apply_publish(self, write: ops.Publish, offsets: list[int], now: float) -> None:
        if offsets:
            self._streams[write.stream].append(published(write, offsets, now))

    def _publish(self, op: ops.Publish, now: float) -> list[int]:
        self._apply_publish(op, offsets := self.allocate_offsets(op), now)
        return offsets

    def _apply_save_offset(self, write: ops.SaveOffset, advanced: bool, now: float) -> None:
        self._save_offset(write, now)

    def _save_offset(self, op: ops.SaveOffset, now: float) -> bool:
        if op.offset <= self.saved(op.stream, op.consumer):
            return False
        self._stream(op.stream).offsets[op.consumer] = op.offset
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
        end = min(table.up_to(op.horizon), table.visible())
        del table.events[:end]
        return end

    def hold_back(self, stream: str, key: int, offset: int) -> bool:
        """An open transaction staged an offset; whether it is the first of that stream."""
        staged = self._stream(stream).staged
        return staged.setdefault(key, offset) == offset

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

    def _apply_notify(self, write: ops.Notify, answer: None, now: float) -> None:
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
        self._apply_enqueue(work, self.allocate_ids(work), op.at)
        return ops.Fired(op.times, work.queue)

    def _read_clock(self, op: ops.ReadClock, now: float) -> float:
        return now


HANDLERS: dict[type[Op[Any]], Callable[[Tables, Any, float], Any]] = {
    ops.Enqueue: Tables._enqueue,
    ops.Publish: Tables._publish,
    ops.Notify: Tables._notify,
    ops.SaveOffset: Tables._save_offset,
    ops.GetJob: Tables._get_job,
    ops.GetOffset: Tables._get_offset,
    ops.ReadSince: Tables._read_since,
    ops.ReadFromConsumer: Tables._read_from_consumer,
    ops.Jobs: Tables._jobs,
    ops.CountJobs: Tables._count_jobs,
    ops.NextReadyAt: Tables._next_ready_at,
    ops.CountEvents: Tables._count_events,
    ops.QueueNames: Tables._queue_names,
    ops.StreamNames: Tables._stream_names,
    ops.Schedules: Tables._list_schedules,
    ops.DueSchedules: Tables._due_schedules,
    ops.ReadClock: Tables._read_clock,
    ops.Claim: Tables._claim,
    ops.Ack: Tables._ack,
    ops.Fail: Tables._settle,
    ops.Retry: Tables._settle,
    ops.Release: Tables._settle_each,
    ops.Heartbeat: Tables._settle_each,
    ops.Sweep: Tables._sweep,
    ops.Revive: Tables._revive,
    ops.Delete: Tables._delete,
    ops.Trim: Tables._trim,
    ops.TryLock: Tables._try_lock,
    ops.Renew: Tables._renew,
    ops.Unlock: Tables._unlock,
    ops.AddSchedule: Tables._add_schedule,
    ops.RemoveSchedule: Tables._remove_schedule,
    ops.Fire: Tables._fire,
}

_APPLIERS: dict[type[Op[Any]], Callable[[Tables, Any, Any, float], None]] = {
    ops.Enqueue: Tables._apply_enqueue,
    ops.Publish: Tables._apply_publish,
    ops.Notify: Tables._apply_notify,
    ops.SaveOffset: Tables._apply_save_offset,
}
