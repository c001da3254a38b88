"""One queue of the memory engine: its rows, and the indexes that keep every claim flat.

An index is a hint, kept in step by `add` and `_file`; where a row stands is decided by `slot` of the rules alone. A row
that leaves an index by another door stays behind as a stale entry, told by where it is filed now, and is dropped when
it is met or when the stale outnumber the live.

Ready rows wait in up to 16 lanes, a priority each, as long as they come in claim order; any other ready row waits in
one heap. A claim compares the best lane's head with the heap's. Whatever time moves has a timeline, and the least of
their heads is one float, so that the usual claim pays one comparison for all of them.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, nsmallest

from .._ops import NextReady
from .._rules import queue as rules
from .._rules.bounds import after
from .._rules.queue import (
    BURIED,
    DEAD,
    DELAYED,
    EXPIRED,
    GONE,
    LEASED,
    PROCESSING,
    READY,
    SPENT,
    JobRow,
    JobState,
    Slot,
    claimed,
    slot,
)
from .._values import QueueStatistics

__all__ = ["QueueTable"]

_LANES = 16  # priorities that get a lane of their own
_SLACK = 64  # stale entries that an index may always keep


class Timeline:
    """Rows by an instant; an entry is live while its row is filed under one of the slots."""

    __slots__ = ("_heap", "_limit", "_slots")

    def __init__(self, *slots: Slot) -> None:
        self._slots = slots
        self._heap: list[tuple[float, int, JobRow]] = []
        self._limit = _SLACK

    def add(self, moment: float, row: JobRow) -> None:
        heap = self._heap
        heappush(heap, (moment, row.id, row))
        if len(heap) > self._limit:
            slots = self._slots
            heap[:] = [entry for entry in heap if entry[2].filed in slots]
            heapify(heap)
            self._limit = _SLACK + 2 * len(heap)

    def head(self) -> float:
        """The earliest instant; infinity when there is none."""
        heap = self._heap
        while heap:
            if heap[0][2].filed in self._slots:
                return heap[0][0]
            heappop(heap)
        return math.inf

    def pop(self) -> JobRow:
        return heappop(self._heap)[2]


class QueueTable:
    """The rows of a queue. Every method that takes ``now`` is given one that never decreases, `rewind` aside."""

    __slots__ = (
        "_delayed",
        "_expired",
        "_expiries",
        "_heap",
        "_lanes",
        "_leases",
        "_moves_at",
        "_order",
        "_processing",
        "_ready",
        "_retention",
        "_spent",
        "_stale",
        "dead",
        "rows",
    )

    def __init__(self) -> None:
        self.rows: dict[int, JobRow] = {}
        self._processing = 0
        self._clear()

    def _clear(self) -> None:
        self.dead: dict[int, JobRow] = {}
        self._expired: dict[int, JobRow] = {}
        self._spent: dict[int, JobRow] = {}
        self._lanes: dict[int, deque[JobRow]] = {}
        self._order: list[deque[JobRow]] = []  # the lanes, highest priority first
        self._heap: list[tuple[int, float, int, JobRow]] = []
        self._ready = self._stale = 0
        self._delayed = Timeline(DELAYED)
        self._leases = Timeline(LEASED)
        self._expiries = Timeline(READY, DELAYED, SPENT)
        self._retention = Timeline(BURIED)
        self._moves_at = math.inf

    # Rows in, out and changed

    def add(self, rows: Sequence[JobRow], now: float) -> None:
        """New rows of ascending ids that differ in id and body only: those that are ready, and stay so, go together."""
        known, first = self.rows, rows[0]
        if first.expires_at is None and slot(first, now) is READY:
            for row in rows:
                known[row.id] = row
                row.filed = READY
            self._ready += len(rows)
            self._line_up(rows)
        else:
            for row in rows:
                known[row.id] = row
                self._file(row, now)

    def replace(self, old: JobRow, new: JobRow, now: float) -> None:
        """A change of a row that somebody may hold."""
        self._unfile(old)
        self.rows[new.id] = new
        self._processing += (new.state is PROCESSING) - (old.state is PROCESSING)
        self._file(new, now)

    def remove(self, row: JobRow) -> None:
        """A row that is gone."""
        self._unfile(row)
        del self.rows[row.id]
        self._processing -= row.state is PROCESSING

    def _file(self, row: JobRow, now: float) -> None:
        where = row.filed = slot(row, now)
        if where is READY:
            self._ready += 1
            self._line_up((row,))
        elif where is LEASED:
            self._lease(row)
            return
        elif where is DELAYED:
            self._delayed.add(row.run_at, row)
            self._moves_at = min(self._moves_at, row.run_at)
        elif where is SPENT:
            self._spent[row.id] = row
        elif where is EXPIRED:
            self._expired[row.id] = row
            return
        else:
            self.dead[row.id] = row
            buried_at = rules.buried_at(row)
            if buried_at is not None:
                self._retention.add(buried_at, row)
            return
        if row.expires_at is not None:
            self._expiries.add(row.expires_at, row)
            self._moves_at = min(self._moves_at, row.expires_at)

    def _lease(self, row: JobRow) -> None:
        row.filed = LEASED
        ends = row.claim_expires_at
        assert ends is not None
        if ends < self._moves_at:
            self._moves_at = ends
        self._leases.add(ends, row)

    def _unfile(self, row: JobRow) -> None:
        where, row.filed = row.filed, GONE
        if where is READY:
            self._ready -= 1
            self._left_stale()
        elif where is SPENT:
            del self._spent[row.id]
        elif where is EXPIRED:
            del self._expired[row.id]
        elif where is BURIED:
            del self.dead[row.id]

    # Time

    def advance(self, now: float) -> None:
        """File again whatever time has moved."""
        if now < self._moves_at:
            return
        while self._expiries.head() <= now:
            row = self._expiries.pop()
            self._unfile(row)
            self._file(row, now)
        while self._delayed.head() <= now:
            self._file(self._delayed.pop(), now)
        while self._leases.head() < now:
            self._file(self._leases.pop(), now)
        self._moves_at = min(self._expiries.head(), self._delayed.head(), self._leases.head())

    def rewind(self, now: float) -> None:
        """The clock stepped back: file everything anew."""
        self._clear()
        for row in self.rows.values():
            self._file(row, now)

    # Claim order

    def _line_up(self, rows: Sequence[JobRow]) -> None:
        """Rows that differ in id and body only: into their priority's lane, if they come after all that are in it."""
        first = rows[0]
        lane = self._lanes.get(first.priority)
        if lane is None:
            lane = self._open_lane(first.priority)
        if lane is not None:
            last = lane[-1] if lane else None
            if last is None or last.run_at < first.run_at or (last.run_at == first.run_at and last.id < first.id):
                lane.extend(rows)
                return
        for row in rows:
            heappush(self._heap, (-row.priority, row.run_at, row.id, row))

    def _open_lane(self, priority: int) -> deque[JobRow] | None:
        if len(self._lanes) == _LANES:
            idle = next((known for known, lane in self._lanes.items() if not lane), None)
            if idle is None:
                return None
            del self._lanes[idle]
        lane = self._lanes[priority] = deque()
        self._order = [self._lanes[known] for known in sorted(self._lanes, reverse=True)]
        return lane

    def _left_stale(self) -> None:
        self._stale += 1
        if self._stale > _SLACK + 2 * self._ready:
            self._stale = 0
            for lane in self._lanes.values():
                kept = [row for row in lane if row.filed is READY]
                lane.clear()
                lane.extend(kept)
            self._heap = [entry for entry in self._heap if entry[3].filed is READY]
            heapify(self._heap)

    def _pop_ready(self) -> JobRow | None:
        """Take the first ready row of all out of its lane or heap."""
        heap = self._heap
        while heap and heap[0][3].filed is not READY:
            heappop(heap)
            self._stale -= 1
        for lane in self._order:
            while lane:
                row = lane.popleft()
                if row.filed is READY:
                    if heap and heap[0] < (-row.priority, row.run_at, row.id):
                        lane.appendleft(row)
                        return heappop(heap)[3]
                    return row
                self._stale -= 1
        return heappop(heap)[3] if heap else None

    # Verbs

    def claim(self, worker_id: str, n: int, now: float) -> list[JobRow]:
        """Bury the exhausted, then claim the first ``n`` ready rows."""
        if now >= self._moves_at:
            self.advance(now)
        if self._spent:
            for row in tuple(self._spent.values()):
                self.replace(row, rules.failed(row, now, rules.EXHAUSTED_TEXT), now)
        claims: list[JobRow] = []
        reclaimed = 0
        while n and (first := self._pop_ready()) is not None:
            row = claimed(first, worker_id, now)
            if row is not first:
                first.filed = GONE
                reclaimed += first.state is PROCESSING
                self.rows[row.id] = row
            self._lease(row)
            claims.append(row)
            n -= 1
        count = len(claims)
        self._ready -= count
        self._processing += count - reclaimed
        return claims

    def held(self, job_id: int, token: int, now: float) -> JobRow | None:
        """The row of a valid claim."""
        row = self.rows.get(job_id)
        return row if row is not None and row.token == token and slot(row, now) is LEASED else None

    def ack(self, claims: Iterable[tuple[int, int]], now: float) -> int:
        """Remove the rows whose claims are valid."""
        landed = 0
        for job_id, token in claims:
            row = self.held(job_id, token, now)
            if row is not None:
                row.filed = GONE
                del self.rows[job_id]
                landed += 1
        self._processing -= landed
        return landed

    def sweep(self, now: float) -> int:
        """Delete the dead past their retention, then bury the expired."""
        self.advance(now)
        swept = len(self._expired)
        while self._retention.head() <= now:
            self.remove(self._retention.pop())
            swept += 1
        for row in tuple(self._expired.values()):
            self.replace(row, rules.failed(row, now, rules.EXPIRED_TEXT), now)
        return swept

    def next_ready(self, now: float) -> NextReady:
        """When a claim may next find a row."""
        self.advance(now)
        if self._ready:
            return NextReady(now, now)
        at = min(self._delayed.head(), after(self._leases.head()))
        return NextReady(None if at == math.inf else at, now)

    def statistics(self, now: float) -> QueueStatistics:
        """Rows by state, and how many a claim would take."""
        self.advance(now)
        dead = len(self.dead)
        return QueueStatistics(len(self.rows) - self._processing - dead, self._processing, dead, self._ready)

    def page(self, state: JobState | None, limit: int, after_id: int) -> list[JobRow]:
        """Rows by ascending id."""
        rows = self.dead if state is DEAD else self.rows
        ids = (job_id for job_id, row in rows.items() if job_id > after_id and (state is None or row.state is state))
        return [rows[job_id] for job_id in nsmallest(limit, ids)]
