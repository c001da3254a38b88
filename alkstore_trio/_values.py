"""The values that the library hands out: frozen, comparable, the same for every engine.

A value holds no connection and does no I/O. Instants are unix seconds, lengths of time seconds.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from ._rules import payload as codec
from ._rules.queue import JobRow, JobState

__all__ = [
    "Job",
    "JobState",
    "QueueStatistics",
    "Schedule",
    "ScheduleOptions",
    "ScheduleState",
    "StreamEvent",
    "StreamStatistics",
    "Wake",
    "event_of",
    "job_of",
    "maker_of",
]

T = TypeVar("T")


def maker_of(frozen: type[T]) -> type[T]:
    """What makes values of a frozen class two to three times as fast as it does: each is frozen once it is filled.

    For classes of plain fields without a slot for weak references, which would change the layout.
    """
    of_class: Any = frozen  # the type checkers want to know that it has fields
    fields = {field.name: attrs.field(default=field.default, init=field.init) for field in attrs.fields(of_class)}

    def freeze(value: object) -> None:
        value.__class__ = frozen

    maker: type[T] = attrs.make_class(
        frozen.__name__, fields, class_body={"__attrs_post_init__": freeze}, slots=True, weakref_slot=False, eq=False
    )
    freeze(object.__new__(maker))  # refused here and now if the layouts differ
    return maker


@attrs.frozen(weakref_slot=False)
class Job:
    """A job as it stood when it was read; ``body`` is the stored JSON text."""

    id: int
    queue: str
    body: str
    state: JobState
    priority: int
    run_at: float
    expires_at: float | None
    attempts: int
    max_attempts: int
    visibility_timeout: float
    base_backoff: float
    dead_retention: float | None
    worker_id: str | None
    claim_expires_at: float | None
    created_at: float
    last_error: str | None
    died_at: float | None

    _payload: Any = attrs.field(default=None, init=False, eq=False, repr=False)  # None: not decoded yet, or null

    @property
    def payload(self) -> Any:
        """The decoded body. ``CodecError`` if it is no JSON."""
        return _decoded(self)

    def payload_as(self, convert: Callable[[Any], T]) -> T:
        """``convert(payload)``: a class's constructor, a validator. Whatever it raises is a ``CodecError``."""
        return codec.convert(self.body, self.payload, convert)


def _decoded(carrier: "Job | StreamEvent") -> Any:
    """The payload, decoded once and kept."""
    payload = carrier._payload
    if payload is None:
        payload = codec.decode(carrier.body)
        object.__setattr__(carrier, "_payload", payload)
    return payload


_make_job = maker_of(Job)


def job_of(row: JobRow) -> Job:
    """The public value of an engine's row."""
    stamps = row.stamps
    return _make_job(
        row.id,
        row.queue,
        row.body,
        row.state,
        row.priority,
        row.run_at,
        row.expires_at,
        row.attempts,
        stamps.max_attempts,
        stamps.visibility_timeout,
        stamps.base_backoff,
        stamps.dead_retention,
        row.worker_id,
        row.claim_expires_at,
        row.created_at,
        row.last_error,
        row.died_at,
    )


@attrs.frozen(weakref_slot=False)
class StreamEvent:
    """An event of a stream; ``body`` is the stored JSON text, ``key`` what the publisher gave."""

    offset: int
    stream: str
    key: str | None
    body: str
    created_at: float

    _payload: Any = attrs.field(default=None, init=False, eq=False, repr=False)  # None: not decoded yet, or null

    @property
    def payload(self) -> Any:
        """The decoded body. ``CodecError`` if it is no JSON."""
        return _decoded(self)

    def payload_as(self, convert: Callable[[Any], T]) -> T:
        """``convert(payload)``: a class's constructor, a validator. Whatever it raises is a ``CodecError``."""
        return codec.convert(self.body, self.payload, convert)


event_of = maker_of(StreamEvent)


@attrs.frozen
class Wake:
    """A hint that something was notified on a channel: no payload, no count."""

    channel: str


@attrs.frozen
class QueueStatistics:
    """Rows of a queue by state, and how many a claim would take now."""

    pending: int
    processing: int
    dead: int
    ready: int


@attrs.frozen
class StreamStatistics:
    """The first and last offset that a reader may see (``None``: no event), and each consumer's saved offset."""

    first: int | None
    last: int | None
    consumers: Mapping[str, int]


@attrs.frozen
class ScheduleOptions:
    """What a schedule's fires are enqueued with; ``expires`` is seconds from the fire."""

    priority: int = 0
    expires: float | None = None
    max_attempts: int | None = None


@attrs.frozen
class Schedule:
    """A registered schedule: every boundary of ``spec`` enqueues its payload on ``queue``."""

    name: str
    spec: str
    queue: str
    opts: ScheduleOptions


@attrs.frozen
class ScheduleState:
    """A schedule and its next boundary."""

    schedule: Schedule
    next_at: float
