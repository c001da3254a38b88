"""The reads that both SQL engines ask in one text, and what rows of the catalogue become.

Each is a generator of an op alone, with no clock: it yields a text and its parameters, and is sent the rows.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeVar

from .. import _ops as ops
from .._ops import Op
from .._rules.bounds import after
from .._rules.queue import DEAD, PENDING, PROCESSING, JobRow
from .._rules.stamps import Stamps
from .._values import Schedule, ScheduleOptions, ScheduleState, StreamEvent, event_of
from . import statements as sql

__all__ = ["READS", "STATE_NUMBERS", "events", "get_offset", "job_rows", "names", "next_ready", "page"]

A = TypeVar("A")

Steps = Generator[tuple[str, Mapping[str, Any]], Any, A]

_STATES = (PENDING, PROCESSING, DEAD)
STATE_NUMBERS = {state: number for number, state in enumerate(_STATES)}

_stamps = lru_cache(maxsize=256)(Stamps)  # a queue's rows have few


def job_rows(rows: Iterable[Sequence[Any]]) -> list[JobRow]:
    """Jobs as `statements.JOB` lists them; what a row has besides is passed over."""
    return [
        JobRow(
            job_id,
            queue,
            body,
            _stamps(visibility_timeout, max_attempts, base_backoff, dead_retention),
            priority,
            run_at,
            expires_at,
            created_at,
            _STATES[state],
            attempts,
            token,
            worker_id,
            claim_expires_at,
            last_error,
            died_at,
        )
        for (
            job_id,
            queue,
            body,
            state,
            priority,
            run_at,
            expires_at,
            attempts,
            max_attempts,
            visibility_timeout,
            base_backoff,
            dead_retention,
            worker_id,
            claim_expires_at,
            token,
            created_at,
            last_error,
            died_at,
            *_,
        ) in rows
    ]


def _get_job(op: ops.GetJob) -> Steps[JobRow | None]:
    rows = yield sql.GET_JOB, {"id": op.id, "queue": op.queue}
    return job_rows(rows)[0] if rows else None


def _jobs(op: ops.Jobs) -> Steps[list[JobRow]]:
    page: dict[str, Any] = {"queue": op.queue, "after": op.after, "limit": op.limit}
    if op.state is None:
        rows = yield sql.JOBS, page
    elif op.state is DEAD:
        rows = yield sql.DEAD_JOBS, page
    else:
        rows = yield sql.JOBS_OF_STATE, page | {"state": STATE_NUMBERS[op.state]}
    return job_rows(rows)


def next_ready(
    now: float, due: float | None, state: int | None, pending: float | None, leased: float | None
) -> ops.NextReady:
    """The earliest of what there is: the first row that waits in its lane, and those that stray in others."""
    instants = [] if due is None else [due if state == 0 else after(due)]
    if pending is not None:
        instants.append(pending)
    if leased is not None:
        instants.append(after(leased))
    return ops.NextReady(min(instants, default=None), now)


def names(template: str) -> Steps[list[str]]:
    """The names that a text asks for, in order."""
    rows = yield template, {}
    return sorted(name for (name,) in rows)  # here, since a file in UTF-16 has another order


def get_offset(op: ops.GetOffset | ops.ReadFromConsumer) -> Steps[int]:
    """A consumer's saved offset."""
    rows = yield sql.GET_OFFSET, {"stream": op.stream, "consumer": op.consumer}
    return rows[0][0] if rows else 0


def page(stream: str, offset: int, limit: int) -> Steps[list[StreamEvent]]:
    """The events of a stream above an offset."""
    rows = yield sql.READ_SINCE, {"stream": stream, "offset": offset, "limit": limit}
    return events(stream, rows)


def events(stream: str, rows: Sequence[Sequence[Any]]) -> list[StreamEvent]:
    """Events as `statements.READ_SINCE` lists them."""
    return [event_of(number, stream, key, body, created_at) for number, key, body, created_at in rows]


def _read_since(op: ops.ReadSince) -> Steps[list[StreamEvent]]:
    return page(op.stream, op.offset, op.limit)


def _stream_names(op: ops.StreamNames) -> Steps[list[str]]:
    return names(sql.STREAM_NAMES)


def _schedules(op: ops.Schedules) -> Steps[list[ScheduleState]]:
    rows = yield sql.SCHEDULES, {}
    return [
        ScheduleState(Schedule(name, spec, queue, ScheduleOptions(priority, expires, max_attempts)), next_at)
        for name, spec, queue, priority, expires, max_attempts, next_at in sorted(rows, key=itemgetter(0))
    ]


READS: dict[type[Op[Any]], Callable[[Any], Steps[Any]]] = {
    ops.GetJob: _get_job,
    ops.GetOffset: get_offset,
    ops.ReadSince: _read_since,
    ops.Jobs: _jobs,
    ops.StreamNames: _stream_names,
    ops.Schedules: _schedules,
}
