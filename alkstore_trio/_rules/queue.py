"""What a job's row is, where it stands, and what it becomes.

`slot` is the one place that says which rows a claim takes, which claim is valid, who dies of exhaustion and what a
sweep buries; everything that asks is one comparison with its answer. A transition never looks at the clock: ``now`` and
the jitter are arguments.

A row is changed in place by its first claim, before which nobody can hold it, and replaced by every later change, so
that whoever holds a row keeps what it was given.
"""

from enum import Enum

import attrs

from . import backoff
from .bounds import deadline, shifted
from .names import UNWRITABLE
from .stamps import Stamps

__all__ = [
    "EXHAUSTED_TEXT",
    "EXPIRED_TEXT",
    "JobRow",
    "JobState",
    "Slot",
    "buried_at",
    "claimed",
    "cleaned",
    "ends_at",
    "error_text",
    "extended",
    "failed",
    "ready_at",
    "released",
    "retried",
    "revived",
    "slot",
]

EXHAUSTED_TEXT = "max attempts exceeded"
EXPIRED_TEXT = "expired"

_LONGEST_ERROR = 8_192  # characters


class JobState(Enum):
    """Where a job stands: waiting, claimed, or dead."""

    PENDING = "pending"
    PROCESSING = "processing"
    DEAD = "dead"


class Slot(Enum):
    """Where a row stands at an instant. An engine files rows by it, as a hint; `slot` decides."""

    READY = "ready"  # a claim takes it
    DELAYED = "delayed"  # pending, not due yet
    LEASED = "leased"  # its claim is valid
    EXPIRED = "expired"  # unclaimed past its expiry: waits for a sweep
    SPENT = "spent"  # no attempts left: the next claim buries it
    BURIED = "buried"  # dead
    GONE = "gone"  # not filed yet, deleted, or replaced by a newer row


PENDING, PROCESSING, DEAD = JobState.PENDING, JobState.PROCESSING, JobState.DEAD
READY, DELAYED, LEASED, EXPIRED, SPENT, BURIED, GONE = Slot  # a name is read five times faster than a member


@attrs.define(eq=False, weakref_slot=False)
class JobRow:
    """A job as an engine keeps it. Nothing but the first claim changes it, `filed` aside."""

    id: int
    queue: str
    body: str
    stamps: Stamps
    priority: int
    run_at: float
    expires_at: float | None
    created_at: float
    state: JobState = PENDING
    attempts: int = 0
    token: int = 0
    worker_id: str | None = None
    claim_expires_at: float | None = None
    last_error: str | None = None
    died_at: float | None = None
    filed: Slot = GONE

    def __lt__(self, other: "JobRow") -> bool:
        return False  # entries of one job may tie in a heap, stale ones with the live one: either may go first


def slot(row: JobRow, now: float) -> Slot:
    """Where the row stands at ``now``."""
    if row.state is DEAD:
        return BURIED
    claim_ends = row.claim_expires_at
    if claim_ends is not None and claim_ends >= now:
        return LEASED
    if row.expires_at is not None and row.expires_at <= now:
        return EXPIRED
    if row.run_at > now and claim_ends is None:
        return DELAYED
    return READY if row.attempts < row.stamps.max_attempts else SPENT


def ready_at(now: float, delay: float | None, run_at: float | None) -> float:
    """When a new row is due: now, or at ``now + delay``, or at ``run_at``; a delay wins."""
    return shifted(now, delay) if delay is not None else now if run_at is None else run_at


def ends_at(now: float, expires: float | None) -> float | None:
    """When a new row expires; ``None``: never."""
    return None if expires is None else shifted(now, expires)


def claimed(row: JobRow, worker_id: str, now: float) -> JobRow:
    """The row under a new claim: one more attempt, a fresh token, the whole visibility timeout."""
    if row.token:
        row = attrs.evolve(row)
    row.state = PROCESSING
    row.attempts += 1
    row.token += 1
    row.worker_id = worker_id
    row.claim_expires_at = deadline(now, row.stamps.visibility_timeout)
    return row


def extended(row: JobRow, now: float, extend: float | None) -> JobRow:
    """The row with a new deadline."""
    return attrs.evolve(
        row, claim_expires_at=deadline(now, row.stamps.visibility_timeout if extend is None else extend)
    )


def failed(row: JobRow, now: float, error: str) -> JobRow:
    """The row, dead with a text; it keeps everything else."""
    return attrs.evolve(row, state=DEAD, last_error=error, died_at=now)


def retried(row: JobRow, now: float, error: str, delay: float | None, jitter: float) -> JobRow:
    """The row after a failure: dead when its attempts are spent, else pending at ``delay`` or on the curve."""
    if row.attempts >= row.stamps.max_attempts:
        return failed(row, now, error)
    if delay is None:
        delay = backoff.delay(row.stamps.base_backoff, row.attempts, jitter)
    return attrs.evolve(_unclaimed(row), run_at=shifted(now, delay), last_error=error)


def released(row: JobRow, now: float, delay: float | None) -> JobRow:
    """The row given back, its attempt refunded: ready as it was, or in ``delay``."""
    row = attrs.evolve(_unclaimed(row), attempts=row.attempts - 1)
    return row if delay is None else attrs.evolve(row, run_at=shifted(now, delay))


def revived(row: JobRow, now: float) -> JobRow:
    """A dead row, pending again as if it were new, ready now."""
    return attrs.evolve(_unclaimed(row), attempts=0, run_at=now, expires_at=None, last_error=None, died_at=None)


def _unclaimed(row: JobRow) -> JobRow:
    return attrs.evolve(row, state=PENDING, worker_id=None, claim_expires_at=None)


def buried_at(row: JobRow) -> float | None:
    """The instant from which a sweep deletes a dead row; ``None``: never."""
    if row.died_at is None or row.stamps.dead_retention is None:
        return None
    return shifted(row.died_at, row.stamps.dead_retention)


def cleaned(error: str) -> str:
    """An error text as it is stored: NUL and lone surrogates become U+FFFD, what is too long is cut."""
    if not isinstance(error, str):
        raise TypeError(f"an error text must be a str, not {type(error).__name__}")
    return UNWRITABLE.sub("\ufffd", error[:_LONGEST_ERROR])


def error_text(error: BaseException) -> str:
    """``{type name}: {message}`` of an exception."""
    try:
        message = str(error)
    except Exception as unprintable:
        message = f"<{type(unprintable).__name__} while printing it>"
    return cleaned(f"{type(error).__name__}: {message}")
