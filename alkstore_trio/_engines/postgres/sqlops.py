"""What each op asks of the server: a generator that yields statements and is sent their rows.

Most ask once. It yields a text of the catalogue and its parameters; `clock` is among them in every text that reads
one, and None there means the server's own. It does no I/O and reads no clock.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

import attrs

from ... import _ops as ops
from ..._ops import Op
from ..._rules import queue as jobs
from ..._rules.queue import JobRow
from ..._rules.stamps import PLAIN, Stamps
from ..._values import QueueStatistics, StreamEvent, StreamStatistics
from .. import statements as common
from ..reads import READS, events, job_rows, names, next_ready
from . import statements as sql
from .cursors import Place

__all__ = [
    "HANDLERS",
    "Steps",
    "ack",
    "check_store",
    "claim",
    "dead_rows",
    "enqueue",
    "forget_locks",
    "identity",
    "old_snapshots",
    "publish",
    "tell",
    "writers",
]

A = TypeVar("A")

Steps = Generator[tuple[str, Mapping[str, Any]], list[tuple[Any, ...]], A]

# Of `statements.JOB`.
_BY_AGE, _BY_PRIORITY = itemgetter(5, 0), itemgetter(4)  # together the order of claims
_WORKER_ID = itemgetter(12)

_RACES = 5  # rounds that get nothing because of other claims

# Queues


def _stamped(stamps: Stamps) -> dict[str, Any]:
    return {
        "max_attempts": stamps.max_attempts,
        "timeout": stamps.visibility_timeout,
        "backoff": stamps.base_backoff,
        "retention": stamps.dead_retention,
    }


def _enqueue(op: ops.Enqueue, clock: float | None) -> Steps[list[int]]:
    if not op.bodies:
        return []
    rows = yield (
        sql.ENQUEUE,
        {
            "clock": clock,
            "queue": op.queue,
            "bodies": list(op.bodies),
            "delay": op.delay,
            "instant": op.run_at,
            "priority": op.priority,
            "expires": op.expires,
            **_stamped(op.stamps),
        },
    )
    return [job_id for (job_id,) in rows]


def _differ_by_bodies(one: ops.Enqueue, other: ops.Enqueue) -> bool:
    """Whether two enqueues have all in common but what they enqueue."""
    return (
        one.queue == other.queue
        and one.stamps == other.stamps
        and one.delay == other.delay
        and one.run_at == other.run_at
        and one.priority == other.priority
        and one.expires == other.expires
    )


def enqueue(together: Sequence[ops.Enqueue], clock: float | None) -> Steps[list[list[int]]]:
    """The ids that each of some enqueues is given, in one statement."""
    first, *others = together
    if all(map(partial(_differ_by_bodies, first), others)):  # then their bodies are all that need travel
        bodies = tuple(body for op in together for body in op.bodies)
        given = iter((yield from _enqueue(attrs.evolve(first, bodies=bodies), clock)))
        return [[next(given) for _ in op.bodies] for op in together]
    each = [(op, body) for op in together for body in op.bodies]
    rows = yield (
        sql.ENQUEUE_TOGETHER,
        {
            "clock": clock,
            "queues": [op.queue for op, _ in each],
            "bodies": [body for _, body in each],
            "delays": [op.delay for op, _ in each],
            "instants": [op.run_at for op, _ in each],
            "priorities": [op.priority for op, _ in each],
            "expiries": [op.expires for op, _ in each],
            "maxima": [op.stamps.max_attempts for op, _ in each],
            "timeouts": [op.stamps.visibility_timeout for op, _ in each],
            "backoffs": [op.stamps.base_backoff for op, _ in each],
            "retentions": [op.stamps.dead_retention for op, _ in each],
        },
    )
    ids = iter(rows)
    return [[next(ids)[0] for _ in op.bodies] for op in together]


def _queue_names(op: ops.QueueNames, clock: float | None) -> Steps[list[str]]:
    return names(sql.QUEUE_NAMES)


def _count_jobs(op: ops.CountJobs, clock: float | None) -> Steps[QueueStatistics]:
    [counts] = yield common.COUNT_JOBS, {"clock": clock, "queue": op.queue}
    return QueueStatistics(*counts)


def _next_ready_at(op: ops.NextReadyAt, clock: float | None) -> Steps[ops.NextReady]:
    [(now, ready, due, state, pending, leased)] = yield sql.NEXT_READY, {"clock": clock, "queue": op.queue}
    return ops.NextReady(now, now) if ready else next_ready(now, due, state, pending, leased)


def claim(
    together: Sequence[ops.Claim], clock: float | None, behind: Place | None
) -> Steps[tuple[list[list[tuple[Any, ...]]], Place | None, float]]:
    """What each of some claims of one queue gets, for `job_rows`, from a place on.

    Besides, the place of the last row, where there are as many as were asked for, and the seconds that finding took.
    """
    workers = {op.worker_id for op in together}
    params: dict[str, Any] = {
        "clock": clock,
        "queue": together[0].queue,
        "n": sum(op.n for op in together),
        "worker_ids": list(workers) if len(workers) == 1 else [op.worker_id for op in together for _ in range(op.n)],
        "error": jobs.EXHAUSTED_TEXT,
    }
    races = 0
    while True:
        if behind is None:
            rows = yield sql.CLAIM, params
        else:
            rank, run_at, job_id = behind
            rows = yield sql.CLAIM_BEHIND, params | {"last_rank": rank, "last_run_at": run_at, "last_id": job_id}
        *first, seconds, filed, missed = rows[0]
        if first[0] is not None:
            rows.sort(key=_BY_AGE)
            rows.sort(key=_BY_PRIORITY, reverse=True)
            claimed: dict[str, list[tuple[Any, ...]]] = {}
            for row in rows:
                claimed.setdefault(_WORKER_ID(row), []).append(row)
            shares = {worker_id: iter(own) for worker_id, own in claimed.items()}
            last = _place(rows[-1]) if len(rows) == params["n"] else None
            return [list(islice(shares.get(op.worker_id, ()), op.n)) for op in together], last, seconds
        if behind is not None:  # too few were left there, and none was claimed
            behind = None
        elif not filed:
            races += 1
            if not missed or races == _RACES:
                return [[] for _ in together], None, seconds


def _place(row: tuple[Any, ...]) -> Place:
    return ~_BY_PRIORITY(row), *_BY_AGE(row)


def _claim(op: ops.Claim, clock: float | None) -> Steps[list[JobRow]]:
    [rows], _, _ = yield from claim([op], clock, None)
    return job_rows(rows)


def _ack(op: ops.Ack, clock: float | None) -> Steps[int]:
    [landed] = yield from ack([op], clock)
    return landed


def ack(together: Sequence[ops.Ack], clock: float | None) -> Steps[list[int]]:
    """How many of the claims of each of some acks of one queue landed, in one statement."""
    queue = together[0].queue
    each = [claim for op in together for claim in op.claims]
    if not each:
        return [0 for _ in together]
    if len(each) == 1 and len(together) == 1:
        [(job_id, token)] = each
        rows = yield sql.ACK, {"clock": clock, "queue": queue, "id": job_id, "token": token}
        return [len(rows)]
    ids, tokens = (list(column) for column in zip(*each, strict=True))
    rows = yield sql.ACK_TOGETHER, {"clock": clock, "queue": queue, "ids": ids, "tokens": tokens}
    left = set(rows)
    answers = []
    for op in together:
        landed = [claim for claim in op.claims if claim in left]
        left.difference_update(landed)  # where two of them name one claim, the first has it
        answers.append(len(landed))
    return answers


def _fail(op: ops.Fail, clock: float | None) -> Steps[bool]:
    return _moved(sql.FAIL, clock, queue=op.queue, id=op.id, token=op.token, error=op.error)


def _retry(op: ops.Retry, clock: float | None) -> Steps[bool]:
    return _moved(
        sql.RETRY,
        clock,
        queue=op.queue,
        id=op.id,
        token=op.token,
        error=op.error,
        delay=op.delay,
        jitter=op.jitter,
    )


def _release(op: ops.Release, clock: float | None) -> Steps[list[tuple[int, int]]]:
    return _moved_each(sql.RELEASE, sql.RELEASE_TOGETHER, op, clock, delay=op.delay)


def _heartbeat(op: ops.Heartbeat, clock: float | None) -> Steps[list[tuple[int, int]]]:
    return _moved_each(sql.HEARTBEAT, sql.HEARTBEAT_TOGETHER, op, clock, extend=op.extend)


def _moved_each(
    one: str, together: str, op: ops.Release | ops.Heartbeat, clock: float | None, **params: Any
) -> Steps[list[tuple[int, int]]]:
    """The claims whose rows a guarded move has moved."""
    if len(op.claims) == 1:
        [(job_id, token)] = op.claims
        rows = yield one, {"clock": clock, "queue": op.queue, "id": job_id, "token": token, **params}
        return list(op.claims) if rows else []
    ids, tokens = [job_id for job_id, _ in op.claims], [token for _, token in op.claims]
    moved = set((yield together, {"clock": clock, "queue": op.queue, "ids": ids, "tokens": tokens, **params}))
    return [claim for claim in op.claims if claim in moved]


def _moved(template: str, clock: float | None, **params: Any) -> Steps[bool]:
    """Whether a guarded move of one row happened."""
    rows = yield template, {"clock": clock, **params}
    return bool(rows)


def _counted(template: str, clock: float | None, **params: Any) -> Steps[int]:
    """How many rows a move changed."""
    [(count,)] = yield template, {"clock": clock, **params}
    return count  # type: ignore[no-any-return]


def _sweep(op: ops.Sweep, clock: float | None) -> Steps[int]:
    return _counted(sql.SWEEP, clock, queue=op.queue, error=jobs.EXPIRED_TEXT)


def _revive(op: ops.Revive, clock: float | None) -> Steps[int]:
    return _counted(sql.REVIVE, clock, queue=op.queue, ids=list(op.ids))


def _delete(op: ops.Delete, clock: float | None) -> Steps[int]:
    return _counted(sql.DELETE, clock, queue=op.queue, ids=list(op.ids))


# Streams


def _publish(op: ops.Publish, clock: float | None) -> Steps[list[int]]:
    [offsets] = yield from publish([op], clock)
    return offsets


def publish(together: Sequence[ops.Publish], clock: float | None) -> Steps[list[list[int]]]:
    """The offsets that each of some publishes to one stream is given, in one statement."""
    each = [(op.key, body) for op in together for body in op.bodies]
    if not each:
        return [[] for _ in together]
    [(last,)] = yield (
        sql.PUBLISH,
        {
            "clock": clock,
            "stream": together[0].stream,
            "keys": [key for key, _ in each],
            "bodies": [body for _, body in each],
        },
    )
    offsets = iter(range(last - len(each) + 1, last + 1))
    return [[next(offsets) for _ in op.bodies] for op in together]


def _save_offset(op: ops.SaveOffset, clock: float | None) -> Steps[bool]:
    if op.offset <= 0:  # where everybody begins
        return False
    rows = yield sql.SAVE_OFFSET, {"stream": op.stream, "consumer": op.consumer, "offset": op.offset}
    return bool(rows)


def _read_from_consumer(op: ops.ReadFromConsumer, clock: float | None) -> Steps[list[StreamEvent]]:
    page = {"stream": op.stream, "consumer": op.consumer, "limit": op.limit}
    rows = yield sql.READ_FROM_CONSUMER, page
    return events(op.stream, rows)


def _count_events(op: ops.CountEvents, clock: float | None) -> Steps[StreamStatistics]:
    [(first, last, consumers, offsets)] = yield sql.STREAM_STATISTICS, {"stream": op.stream}
    return StreamStatistics(first, last, dict(zip(consumers, offsets, strict=True)))


def _trim(op: ops.Trim, clock: float | None) -> Steps[int]:
    [(count,)] = yield sql.TRIM, {"stream": op.stream, "horizon": op.horizon}
    return count  # type: ignore[no-any-return]


# Notify


def tell(channel: str, payloads: Sequence[str]) -> Steps[None]:
    """Notify a channel of the server's."""
    yield sql.NOTIFY, {"name": channel, "bodies": list(payloads)}


# Locks


def _try_lock(op: ops.TryLock, clock: float | None) -> Steps[int | None]:
    for _ in range(_RACES):
        rows = yield sql.TRY_LOCK, {"clock": clock, "name": op.name, "owner": op.owner, "ttl": op.ttl}
        for owner, token in rows:
            return token if owner == op.owner else None
    return None  # it is taken whenever it is asked for


def _renew(op: ops.Renew, clock: float | None) -> Steps[bool]:
    return _moved(sql.RENEW, clock, name=op.name, token=op.token, ttl=op.ttl)


def _unlock(op: ops.Unlock, clock: float | None) -> Steps[bool]:
    rows = yield sql.UNLOCK, {"name": op.name, "token": op.token}
    return bool(rows)


def forget_locks(clock: float | None) -> Steps[None]:
    """Delete the rows of locks that nobody has taken for a day."""
    yield sql.FORGET_LOCKS, {"clock": clock}


# Schedules


def _add_schedule(op: ops.AddSchedule, clock: float | None) -> Steps[None]:
    yield (
        sql.ADD_SCHEDULE,
        {
            "clock": clock,
            "name": op.name,
            "spec": op.spec,
            "interval": op.interval,
            "queue": op.queue,
            "body": op.body,
            "priority": op.options.priority,
            "expires": op.options.expires,
            "max_attempts": op.options.max_attempts,
        },
    )


def _remove_schedule(op: ops.RemoveSchedule, clock: float | None) -> Steps[bool]:
    rows = yield sql.REMOVE_SCHEDULE, {"name": op.name}
    return bool(rows)


def _due_schedules(op: ops.DueSchedules, clock: float | None) -> Steps[ops.Due]:
    rows = yield sql.DUE_SCHEDULES, {"clock": clock}
    now, *_, next_at = rows[0]
    due = [ops.DueSchedule(*row[1:4]) for row in rows if row[1] is not None]
    return ops.Due(due, next_at, now)


def _fire(op: ops.Fire, clock: float | None) -> Steps[ops.Fired | None]:
    [(queue, leads)] = yield (
        sql.FIRE,
        {
            "clock": clock,
            "name": op.name,
            "seen": op.seen,
            "next_at": op.next_at,
            "times": op.times,
            "instant": op.at,
            "lease": op.lease,
            "token": op.token,
            **_stamped(PLAIN),
        },
    )
    if queue is None:
        return ops.Fired(0, "") if leads else None
    return ops.Fired(op.times, queue)


def _read_clock(op: ops.ReadClock, clock: float | None) -> Steps[float]:
    [(now,)] = yield sql.READ_CLOCK, {"clock": clock}
    return now  # type: ignore[no-any-return]


# The schema


def identity() -> Steps[str]:
    """What no other schema has."""
    [(store,)] = yield sql.STORE, {}
    return store  # type: ignore[no-any-return]


def check_store(store: str) -> Steps[None]:
    """Refuse a schema that is not the one of this identity."""
    [(is_there,)] = yield sql.IS_THERE, {}
    if not is_there or (yield from identity()) != store:
        raise ValueError("the connection is to another database than the store")


def dead_rows() -> Steps[int]:
    """How many rows of jobs have died and are not vacuumed, as far as the server knows."""
    rows = yield sql.DEAD_ROWS, {}
    return rows[0][0] if rows else 0


def old_snapshots(seconds: float) -> Steps[list[tuple[Any, ...]]]:
    """The sessions whose transactions have kept dead rows for so long: pid, name, seconds."""
    return (yield sql.OLD_SNAPSHOTS, {"timeout": seconds})


def writers() -> Steps[list[tuple[Any, ...]]]:
    """The session that has been writing to streams and offsets for the longest: pid, name, seconds."""
    return (yield sql.WRITERS, {})


def bound_waits(bound: str) -> Steps[tuple[str, bool]]:
    """Have a transaction wait for locks no longer than that; its own bound, and whether that was another."""
    [(own, changed)] = yield sql.BOUND_WAITS, {"bound": bound}
    return own, changed


def set_bound(bound: str) -> Steps[None]:
    """Have a transaction wait for locks so long."""
    yield sql.SET_BOUND, {"bound": bound}


def _timeless(read: Callable[[Any], Steps[Any]]) -> Callable[[Any, float | None], Steps[Any]]:
    return lambda op, clock: read(op)


HANDLERS: dict[type[Op[Any]], Callable[[Any, float | None], Steps[Any]]] = {
    **{kind: _timeless(read) for kind, read in READS.items()},
    ops.Enqueue: _enqueue,
    ops.Publish: _publish,
    ops.SaveOffset: _save_offset,
    ops.ReadFromConsumer: _read_from_consumer,
    ops.QueueNames: _queue_names,
    ops.CountJobs: _count_jobs,
    ops.NextReadyAt: _next_ready_at,
    ops.CountEvents: _count_events,
    ops.DueSchedules: _due_schedules,
    ops.ReadClock: _read_clock,
    ops.Claim: _claim,
    ops.Ack: _ack,
    ops.Fail: _fail,
    ops.Retry: _retry,
    ops.Release: _release,
    ops.Heartbeat: _heartbeat,
    ops.Sweep: _sweep,
    ops.Revive: _revive,
    ops.Delete: _delete,
    ops.Trim: _trim,
    ops.TryLock: _try_lock,
    ops.Renew: _renew,
    ops.Unlock: _unlock,
    ops.AddSchedule: _add_schedule,
    ops.RemoveSchedule: _remove_schedule,
    ops.Fire: _fire,
}
