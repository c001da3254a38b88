"""What the rows become that an op touches: the rules, applied to ops, for the engines that apply them in Python."""

from collections.abc import Iterable

from .. import _ops as ops
from .._rules import queue as rules
from .._rules.queue import JobRow
from .._values import StreamEvent, event_of

__all__ = ["enqueued", "published", "settled"]


def enqueued(write: ops.Enqueue, ids: Iterable[int], now: float) -> list[JobRow]:
    """The rows that an enqueue adds, which differ in id and body only; there are as many ids as bodies."""
    # Neither a comprehension nor a strict zip: most writes have one body, and either costs it half a microsecond.
    numbers = iter(ids)
    run_at = rules.ready_at(now, write.delay, write.run_at)
    expires_at = rules.ends_at(now, write.expires)
    rows = []
    for body in write.bodies:
        row = JobRow(next(numbers), write.queue, body, write.stamps, write.priority, run_at, expires_at, now)
        rows.append(row)
    return rows


def published(write: ops.Publish, offsets: Iterable[int], now: float) -> list[StreamEvent]:
    """The events that a publish appends; there are as many offsets as bodies."""
    numbers = iter(offsets)
    events = []
    for body in write.bodies:
        event = event_of(next(numbers), write.stream, write.key, body, now)
        events.append(event)
    return events


def settled(row: JobRow, op: ops.Fail | ops.Retry | ops.Release | ops.Heartbeat, now: float) -> JobRow:
    """What a claimed row becomes."""
    match op:
        case ops.Fail():
            return rules.failed(row, now, op.error)
        case ops.Retry():
            return rules.retried(row, now, op.error, op.delay, op.jitter)
        case ops.Release():
            return rules.released(row, now, op.delay)
        case ops.Heartbeat():
            return rules.extended(row, now, op.extend)
