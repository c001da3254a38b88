"""Where claims of a queue go on, when the way there leads past a graveyard.

Rows that are gone stay in the index until they are vacuumed, which an old snapshot may keep from happening for hours,
and each claim walks over them from the queue's head. After a claim that took long the next one begins where that one
ended. What comes in before that place is overlooked until the cursor is dropped: by any wake of the queue, a claim that
comes back short, and the passing of a second.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import attrs

from ..._rules.names import queue_wake
from ..._wake import Hub

__all__ = ["Cursors", "Place"]

_LONG = 0.002  # seconds until a claim has found its rows where something is in its way; a plain one needs some 0.3 ms
_EACH = 0.00005  # seconds, several times what finding each of its rows takes besides
_LASTS = 1.0  # seconds

Place = tuple[int, float, int]  # in the order of claims: the complement of the priority, run_at, id


@attrs.define(eq=False)
class _Cursor:
    """A place in a queue, on its channel: whatever wakes the queue ends it."""

    cursors: "Cursors"
    queue: str
    place: Place
    until: float  # by the loop's clock

    def wake(self, channel: str) -> None:
        self.cursors.drop(self.queue)

    def close(self) -> None:
        self.cursors.drop(self.queue)


@attrs.define(eq=False)
class _Claiming:
    """A claim under way: where it begins, and whether the queue was woken since."""

    cursors: "Cursors"
    queue: str
    place: Place | None  # None: at the head
    woken: bool = False

    def wake(self, channel: str) -> None:
        self.woken = True

    def close(self) -> None:
        self.woken = True

    def claimed(self, n: int, last: Place | None, seconds: float) -> None:
        """It asked for ``n`` rows, which took so long to find; the last is there, or ``None`` where there are fewer."""
        if last is None:
            self.cursors.drop(self.queue)
        elif not self.woken and (self.place is not None or seconds > _LONG + _EACH * n):
            self.cursors.go_on_behind(self.queue, last)


class Cursors:
    """The cursors of a store."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._cursors: dict[str, _Cursor] = {}

    @contextmanager
    def claiming(self, queue: str) -> Iterator[_Claiming]:
        """A claim of a queue."""
        cursor = self._cursors.get(queue)
        if cursor is not None and anyio.current_time() >= cursor.until:
            self.drop(queue)
            cursor = None
        claiming = _Claiming(self, queue, None if cursor is None else cursor.place)
        self._hub.attach(queue_wake(queue), claiming)
        try:
            yield claiming
        finally:
            self._hub.detach(queue_wake(queue), claiming)

    def go_on_behind(self, queue: str, place: Place) -> None:
        """Begin there from now on, for a second in all."""
        cursor = self._cursors.get(queue)
        if cursor is not None:
            cursor.place = max(cursor.place, place)
            return
        now = anyio.current_time()
        while self._cursors and (eldest := next(iter(self._cursors.values()))).until <= now:
            self.drop(eldest.queue)  # of a queue from which nobody may ever claim again
        cursor = self._cursors[queue] = _Cursor(self, queue, place, now + _LASTS)
        self._hub.attach(queue_wake(queue), cursor)

    def drop(self, queue: str) -> None:
        """Begin at the head again."""
        cursor = self._cursors.pop(queue, None)
        if cursor is not None:
            self._hub.detach(queue_wake(queue), cursor)
