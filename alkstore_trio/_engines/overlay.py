"""A transaction's staging record, and reads over it.

An effect is staged with everything that decides it - the id or offset it was given, the instant - in a frozen record
that names its predecessor, so that the record grows by one value per effect. What a read needs of it is kept in a
`View`, which catches up with the record when it is asked. The overlay never touches a table.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import attrs

from .._ops import Enqueue, Notify, Publish, SaveOffset, Write
from .._rules import queue as rules
from .._rules.queue import JobRow
from .._values import StreamEvent

__all__ = ["Staged", "View", "effects"]

_OFFSET = attrgetter("offset")


@attrs.frozen(eq=False, repr=False)
class Staged:
    """One effect of a transaction, after all those before it."""

    write: Write[Any]
    answer: Any  # what the caller was told: ids, offsets, whether a save advanced
    now: float
    before: "Staged | None"


def effects(last: Staged | None, until: Staged | None = None) -> Iterator[Staged]:
    """The record in stage order, without what ``until`` and its predecessors say."""
    newest_first: list[Staged] = []
    while last is not until and last is not None:
        newest_first.append(last)
        last = last.before
    return reversed(newest_first)


class View:
    """What a staging record adds to the committed state."""

    __slots__ = ("_events", "_jobs", "_offsets", "_seen")

    def __init__(self) -> None:
        self._seen: Staged | None = None
        self._jobs: dict[int, JobRow] = {}
        self._events: dict[str, list[StreamEvent]] = {}
        self._offsets: dict[tuple[str, str], int] = {}

    def catch_up(self, last: Staged | None) -> None:
        """Take in what was staged since the last time."""
        for staged in effects(last, self._seen):
            match staged.write:
                case Enqueue():
                    self._jobs.update((row.id, row) for row in enqueued(staged.write, staged.answer, staged.now))
                case Publish(stream=stream):
                    self._events.setdefault(stream, []).extend(published(staged.write, staged.answer, staged.now))
                case SaveOffset(stream=stream, consumer=consumer, offset=offset):
                    reached = self._offsets.get((stream, consumer), 0)
                    self._offsets[stream, consumer] = max(reached, offset)
                case Notify():
                    pass
        self._seen = last

    def job(self, queue: str, job_id: int) -> JobRow | None:
        """A staged job of a queue."""
        row = self._jobs.get(job_id)
        return row if row is not None and row.queue == queue else None

    def offset(self, stream: str, consumer: str, committed: int) -> int:
        """A consumer's offset over the committed one."""
        return max(self._offsets.get((stream, consumer), 0), committed)

    def events(self, stream: str, offset: int, limit: int, committed: list[StreamEvent]) -> list[StreamEvent]:
        """A page of the stream over its committed page."""
        own = self._events.get(stream)
        if not own or limit == 0:
            return committed
        start = bisect_right(own, offset, key=_OFFSET)
        return sorted([*committed, *own[start : start + limit]], key=_OFFSET)[:limit]


def enqueued(write: Enqueue, ids: list[int], now: float) -> list[JobRow]:
    """The rows that an enqueue adds; they differ in their ids and bodies alone."""
    queue, stamps, priority = write.queue, write.stamps, write.priority
    run_at = now if write.delay is None is write.run_at else rules.ready_at(now, write.delay, write.run_at)
    expires_at = None if write.expires is None else rules.ends_at(now, write.expires)
    if len(ids) == 1:  # the usual case, at half the price
        return [JobRow(ids[0], queue, write.bodies[0], stamps, priority, run_at, expires_at, now)]
    rows = []
    for job_id, body in zip(ids, write.bodies, strict=True):
        rows.append(JobRow(job_id, queue, body, stamps, priority, run_at, expires_at, now))
    return rows


def published(write: Publish, offsets: list[int], now: float) -> list[StreamEvent]:
    """The events that a publish appends."""
    stream, key = write.stream, write.key
    if len(offsets) == 1:
        return [StreamEvent(offsets[0], stream, key, write.bodies[0], now)]
    return [StreamEvent(offset, stream, key, body, now) for offset, body in zip(offsets, write.bodies, strict=True)]
