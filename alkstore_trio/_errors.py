"""The errors of the library: one tree, for what happens in the world.

A refusal is a value and misuse is a builtin error; neither lives here. An error keeps its arguments, so that it
survives pickling, and never carries a password or a driver's type.
"""

from datetime import timedelta

from anyio import ClosedResourceError

__all__ = [
    "AlkstoreError",
    "Closed",
    "CodecError",
    "CommitUnknown",
    "DatabaseError",
    "Discard",
    "InvalidName",
    "InvalidSpec",
    "LeadershipLost",
    "LockHeld",
    "LockLost",
    "PayloadTooLarge",
    "ReservedName",
    "Snooze",
]

_SHOWN = 80  # characters of an offending value that a message repeats


def shown(value: object) -> str:
    """The ``repr`` of a value, short enough for a message."""
    try:
        text = repr(value)
    except Exception:  # an int past the digit limit, an object that cannot show itself
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


class AlkstoreError(Exception):
    """The root of every error that the library defines."""


class InvalidName(AlkstoreError, ValueError):
    """A name that no engine takes; ``name`` is the offending one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"invalid name {shown(self.name)}: a name is not empty, not only white space, at most 512 bytes of UTF-8, "
            "and has no NUL and no lone surrogate"
        )


class ReservedName(AlkstoreError, ValueError):
    """A name with the library's own prefix ``__alkstore_``; ``name`` is the offending one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"reserved name {shown(self.name)}: names that begin with '__alkstore_' belong to the library"


class InvalidSpec(AlkstoreError, ValueError):
    """A schedule's spec that is not ``@every <n><unit>``; ``spec`` is the offending one."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        self.spec = spec

    def __str__(self) -> str:
        return (
            f"invalid spec {shown(self.spec)}: expected '@every <n><unit>', n a whole number above zero, the unit "
            "one of s, m, h, d (at most 3650 days); cron lines are not supported"
        )


class CodecError(AlkstoreError, ValueError):
    """A payload that JSON cannot carry, or a stored one that a conversion did not take."""


class PayloadTooLarge(AlkstoreError):
    """A notify payload of ``size`` bytes, above the ``limit`` of the engine."""

    def __init__(self, limit: int, size: int) -> None:
        super().__init__(limit, size)
        self.limit = limit
        self.size = size

    def __str__(self) -> str:
        return f"a payload of {self.size} bytes: a notify takes at most {self.limit} bytes of JSON on this engine"


class Closed(AlkstoreError, ClosedResourceError):
    """The store, or the receiver, is closed."""

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message)


class LeadershipLost(AlkstoreError):
    """The scheduler's lease is held by another runner, or was lost to one."""


class LockHeld(AlkstoreError):
    """The lock is held by another owner, and the caller did not want to wait."""


class LockLost(AlkstoreError):
    """A hold ended while its block was running: it lapsed, or was released by somebody else."""


class DatabaseError(AlkstoreError):
    """The database refused or failed; the driver's error is the ``__cause__``.

    ``retryable``: a deadlock or a serialization failure; run the transaction again. ``transient``: the database is
    away, locked or out of space; try later.
    """

    def __init__(self, message: str, *, retryable: bool = False, transient: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.transient = transient

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, {"retryable": self.retryable, "transient": self.transient}


class CommitUnknown(DatabaseError):
    """The connection broke, or the disk failed, while a commit was under way: its effect may or may not stand."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Discard(Exception):
    """Raised by a handler: the job is dead, with ``reason`` as its very text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Exception):
    """Raised by a handler: the job is pending again in ``delay`` seconds, its attempt refunded."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(delay)
        self.delay = delay
