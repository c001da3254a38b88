"""A transaction's staging record, and reads over it.

An effect is staged with everything that decides it - the id or offset it was given, the instant - in a frozen record
that names its predecessor, so that the record grows by one value per effect. What a read needs of it is kept in a
`View`, which catches up with the record when it is asked. The overlay never touches a table.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import Any

import attrs

from .._ops import Enqueue, Notify, Publish, SaveOffset, Write
from .._rules.queue import JobRow
from .._values import StreamEvent, maker_of
from .outcomes import enqueued, published

__all__ = ["Staged", "View", "effects", "staged"]

_OFFSET = attrgetter("offset")


@attrs.frozen(eq=False, repr=False, weakref_slot=False)
class Staged:
    """One effect of a transaction, after all those before it: what its caller was told, and the instant."""

    write: Write[Any]
    answer: Any
    now: float
    before: "Staged | None"


staged = maker_of(Staged)


def effects(last: Staged | None, until: Staged | None = None) -> list[Staged]:
    """The record in stage order, without what ``until`` and its predecessors say."""
    record: list[Staged] = []
    while last is not until and last is not None:
        record.append(last)
        last = last.before
    record.reverse()
    return record


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
        for effect in effects(last, self._seen):
            match effect.write:
                case Enqueue() as write:
                    self._jobs.update((row.id, row) for row in enqueued(write, effect.answer, effect.now))
                case Publish(stream=stream) as write:
                    self._events.setdefault(stream, []).extend(published(write, effect.answer, effect.now))
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
