"""What an engine can be asked: one slotted value per question, each knowing the type of its answer.

An op is checked and encoded before it is built, and nothing changes it afterwards. It carries no instant that came
from a clock (a `Fire` names the tick it belongs to): durations travel as durations, the caller's absolute instants as
they are, jitter as a number. The unit that does it supplies ``now``.

Three families: a *write* cannot be refused and may be staged in a transaction; a *read* may be run in one (`TxRead`) or
only outside; a *move* is guarded, may be refused, and is never part of a transaction.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from ._rules import names
from ._rules.queue import JobRow, JobState
from ._rules.stamps import Stamps
from ._values import QueueStatistics, ScheduleOptions, ScheduleState, StreamEvent, StreamStatistics

if TYPE_CHECKING:
    from attrs import frozen as op
else:
    op = attrs.define  # freezing costs three times the rest; the type checkers and a test see to it

A = TypeVar("A")


class Op(Generic[A]):
    """A question to an engine whose answer is an ``A``."""

    __slots__ = ()

    def wakes(self, answer: A, /) -> tuple[str, ...]:
        """The channels that wake once the answer stands."""
        return ()


class Write(Op[A]):
    """Cannot be refused; may be staged."""

    __slots__ = ()


class Read(Op[A]):
    """Changes nothing."""

    __slots__ = ()


class TxRead(Read[A]):
    """A read that a transaction answers too, its own effects included."""

    __slots__ = ()


class Move(Op[A]):
    """Guarded: the answer says whether it happened."""

    __slots__ = ()


# Writes


@op
class Enqueue(Write[list[int]]):
    """Add jobs; the answer is their ids, in order."""

    queue: str
    bodies: tuple[str, ...]
    stamps: Stamps
    delay: float | None
    run_at: float | None
    priority: int
    expires: float | None

    def wakes(self, ids: list[int], /) -> tuple[str, ...]:
        return (names.queue_wake(self.queue),) if ids else ()


@op
class Publish(Write[list[int]]):
    """Append events; the answer is their offsets, in order."""

    stream: str
    key: str | None
    bodies: tuple[str, ...]

    def wakes(self, offsets: list[int], /) -> tuple[str, ...]:
        return (names.stream_wake(self.stream),) if offsets else ()


@op
class Notify(Write[None]):
    """Wake the listeners of a channel."""

    channel: str

    def wakes(self, answer: None, /) -> tuple[str, ...]:
        return (self.channel,)


@op
class SaveOffset(Write[bool]):
    """Move a consumer's offset forward; the answer is whether it advanced."""

    stream: str
    consumer: str
    offset: int


# Reads


@op
class GetJob(TxRead[JobRow | None]):
    """A job of a queue, dead ones included."""

    queue: str
    id: int


@op
class GetOffset(TxRead[int]):
    """A consumer's saved offset; 0 when it never saved."""

    stream: str
    consumer: str


@op
class ReadSince(TxRead[list[StreamEvent]]):
    """Events above an offset that a reader may see, ascending."""

    stream: str
    offset: int
    limit: int


@op
class ReadFromConsumer(TxRead[list[StreamEvent]]):
    """Events above a consumer's saved offset, ascending."""

    stream: str
    consumer: str
    limit: int


@op
class Jobs(Read[list[JobRow]]):
    """Jobs of a queue by ascending id, of one state or all."""

    queue: str
    state: JobState | None
    limit: int
    after: int


@op
class CountJobs(Read[QueueStatistics]):
    """The statistics of a queue."""

    queue: str


@attrs.define
class NextReady:
    """When a claim may next find a row, and the clock's reading that this was judged by."""

    at: float | None
    now: float


@op
class NextReadyAt(Read[NextReady]):
    """When a claim may next find a row."""

    queue: str


@op
class CountEvents(Read[StreamStatistics]):
    """The statistics of a stream."""

    stream: str


@op
class QueueNames(Read[list[str]]):
    """Names with a job row, sorted."""


@op
class StreamNames(Read[list[str]]):
    """Names with an event or a saved offset, sorted."""


@op
class Schedules(Read[list[ScheduleState]]):
    """All schedules, by name."""


@attrs.define
class DueSchedule:
    """A schedule whose boundary has come."""

    name: str
    next_at: float
    interval: float


@attrs.define
class Due:
    """The schedules to fire by (next_at, name), the earliest boundary of all others, and the clock's reading."""

    schedules: list[DueSchedule]
    next_at: float | None
    now: float


@op
class DueSchedules(Read[Due]):
    """What a tick at this instant would fire."""


@op
class ReadClock(Read[float]):
    """The engine's clock."""


# Moves


@op
class Claim(Move[list[JobRow]]):
    """Claim up to ``n`` jobs, after burying the exhausted; the answer is the rows in claim order."""

    queue: str
    worker_id: str
    n: int


@op
class Ack(Move[int]):
    """Delete the jobs whose claims, pairs of (id, token), are valid; the answer is how many."""

    queue: str
    claims: tuple[tuple[int, int], ...]


@op
class Fail(Move[bool]):
    """Kill a claimed job with a text."""

    queue: str
    id: int
    token: int
    error: str


@op
class Retry(Move[bool]):
    """Give a claimed job another attempt at ``delay`` or on the curve, or kill it if it has none left."""

    queue: str
    id: int
    token: int
    error: str
    delay: float | None
    jitter: float

    def wakes(self, landed: bool, /) -> tuple[str, ...]:
        return (names.queue_wake(self.queue),) if landed else ()


@op
class Release(Move[list[tuple[int, int]]]):
    """Give claimed jobs back with their attempts refunded; the answer is the claims that were valid, in order.

    The claims are pairs of (id, token), each of them once.
    """

    queue: str
    claims: tuple[tuple[int, int], ...]
    delay: float | None

    def wakes(self, landed: list[tuple[int, int]], /) -> tuple[str, ...]:
        return (names.queue_wake(self.queue),) if landed else ()


@op
class Heartbeat(Move[list[tuple[int, int]]]):
    """Extend claims from now; ``None``: by each job's visibility timeout. Claims and answer are as of `Release`."""

    queue: str
    claims: tuple[tuple[int, int], ...]
    extend: float | None

    def wakes(self, landed: list[tuple[int, int]], /) -> tuple[str, ...]:
        # A worker's own renewal only moves the deadline away; one of the caller's may bring it nearer.
        return (names.queue_wake(self.queue),) if landed and self.extend is not None else ()


@op
class Sweep(Move[int]):
    """Delete dead rows past their retention, bury expired ones; the answer is how many in all."""

    queue: str


@op
class Revive(Move[int]):
    """Make dead jobs pending again; the answer is how many."""

    queue: str
    ids: tuple[int, ...]

    def wakes(self, count: int, /) -> tuple[str, ...]:
        return (names.queue_wake(self.queue),) if count else ()


@op
class Delete(Move[int]):
    """Delete jobs that no valid claim holds; the answer is how many."""

    queue: str
    ids: tuple[int, ...]


@op
class Trim(Move[int]):
    """Delete the events up to a horizon that a reader may see; the answer is how many."""

    stream: str
    horizon: int


@op
class TryLock(Move[int | None]):
    """Take a lock; the answer is the hold's token, or ``None`` if another owner holds it."""

    name: str
    owner: str
    ttl: float


@op
class Renew(Move[bool]):
    """Give a hold a full window from now, unless it has lapsed."""

    name: str
    token: int
    ttl: float


@op
class Unlock(Move[bool]):
    """Free a lock while its row is still this hold's."""

    name: str
    token: int


@op
class AddSchedule(Move[None]):
    """Register a schedule by name; an unchanged interval keeps the grid."""

    name: str
    spec: str
    interval: float
    queue: str
    body: str
    options: ScheduleOptions

    def wakes(self, answer: None, /) -> tuple[str, ...]:
        return (names.SCHEDULE_WAKE,)


@op
class RemoveSchedule(Move[bool]):
    """Forget a schedule."""

    name: str


@attrs.define
class Fired:
    """How often a schedule fired, and onto which queue; no times when it had moved on."""

    times: int
    queue: str


@op
class Fire(Move[Fired | None]):
    """Enqueue a schedule's job ``times`` times as of the tick at ``at`` and advance it from ``seen`` to ``next_at``.

    Happens only if the schedule still stands at ``seen`` and the hold ``token`` of the lock ``lease`` is live by a
    fresh reading of the clock; ``None`` when that is not.
    """

    name: str
    seen: float
    next_at: float
    times: int
    at: float
    lease: str
    token: int

    def wakes(self, fired: Fired | None, /) -> tuple[str, ...]:
        return (names.queue_wake(fired.queue),) if fired and fired.times else ()


def wakes_of_end(effects: Iterable[tuple[Write[Any], Any]], uncovered: Iterable[str]) -> list[str]:
    """The channels that the end of a transaction wakes: its notifies in order, then events, then queues.

    ``effects`` are the pairs of write and answer that it committed, ``uncovered`` the streams of which others can see
    more now that it is over.
    """
    notified: list[str] = []
    streams = dict.fromkeys(map(names.stream_wake, uncovered))
    queues: dict[str, None] = {}
    for write, answer in effects:
        if isinstance(write, Notify):
            notified.append(write.channel)
        else:
            woken = streams if isinstance(write, Publish) else queues
            woken.update(dict.fromkeys(write.wakes(answer)))
    return [*notified, *streams, *queues]
