"""What the rows become that an op touches: the rules, applied to ops, for the engines that apply them in Python."""

from .. import _ops as ops
from .._rules import queue as rules
from .._rules.queue import JobRow
from .._values import StreamEvent

__all__ = ["enqueued", "published", "settled"]


def enqueued(write: ops.Enqueue, job_id: int, body: str, now: float) -> JobRow:
    """A row that an enqueue adds."""
    return JobRow(
        job_id,
        write.queue,
        body,
        write.stamps,
        write.priority,
        rules.ready_at(now, write.delay, write.run_at),
        rules.ends_at(now, write.expires),
        now,
    )


def published(write: ops.Publish, offset: int, body: str, now: float) -> StreamEvent:
    """An event that a publish appends."""
    return StreamEvent(offset, write.stream, write.key, body, now)


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
