"""What open transactions of a store hold, so that whoever waits for it is told by whom, and nobody for himself.

The server alone decides who waits; it knows sessions, and this knows tasks.
"""

import threading
import time
from typing import Any

import attrs

from ... import _ops as ops
from ..._errors import DatabaseError
from ..._loop import TaskRef, asking_task
from ..._ops import Op

__all__ = ["Hold", "Holds", "Key", "key_of"]

Key = tuple[str, ...]


@attrs.frozen(eq=False)
class Hold:
    """A transaction's grip on what it has written."""

    task: TaskRef | None
    who: str
    since: float  # by `time.monotonic`, which a thread without a loop has too

    def __str__(self) -> str:
        return f"an open transaction of the task {self.who!r}, begun {time.monotonic() - self.since:.1f} s ago"


def key_of(op: Op[Any]) -> Key | None:
    """What of an op's effect a transaction holds until its end."""
    if isinstance(op, ops.Publish):
        return ("stream", op.stream)
    if isinstance(op, ops.SaveOffset) and op.offset > 0:  # else it writes nothing
        return ("offset", op.stream, op.consumer)
    return None


class Holds:
    """The holds of a store's open transactions."""

    def __init__(self, lock_timeout: float) -> None:
        self._lock_timeout = lock_timeout
        self._thread = threading.get_ident()  # the loop's
        self._holds: dict[Key, Hold] = {}

    def of(self, key: Key | None) -> Hold | None:
        """Who holds it, of this store."""
        return None if key is None else self._holds.get(key)

    def begin(self, task: TaskRef | None, who: str) -> Hold:
        """The grip of a transaction that a task begins."""
        return Hold(task, who, time.monotonic())

    def take(self, key: Key, hold: Hold) -> None:
        """A transaction has written there."""
        self._holds[key] = hold

    def let_go(self, hold: Hold) -> None:
        """A transaction has ended."""
        for key in [key for key, held in self._holds.items() if held is hold]:
            del self._holds[key]

    def refuse(self, op: Op[Any], own: Hold | None = None) -> None:
        """``RuntimeError`` for an op that would wait for another transaction of the same task, and so for ever."""
        hold = self.of(key_of(op))
        if hold is not None and hold is not own and hold.task == asking_task():
            raise RuntimeError(
                "an open transaction of this task has written there, and this would wait for it: write inside it, or "
                "after it has ended"
            )

    def refuse_blocking(self, op: Op[Any]) -> None:
        """``RuntimeError`` for an op that would keep the loop waiting for a transaction that only the loop can end."""
        hold = self.of(key_of(op))
        if hold is not None and threading.get_ident() == self._thread:
            raise RuntimeError(
                f"{hold}, has written there, and waiting for it would stop the loop in which it is to end: write in "
                "another thread, on an asynchronous connection, or after it has ended"
            )

    def too_long(self, key: Key | None, holder: object, bound: str | None = None) -> DatabaseError:
        """The error of who has waited for somebody, with the store's ``lock_timeout`` or another bound."""
        match key:
            case (_, stream):
                what = f"the stream {stream!r}"
            case (_, stream, consumer):
                what = f"the offset of consumer {consumer!r} in stream {stream!r}"
            case _:
                what = "a row"
        return DatabaseError(
            f"{what} is held by {holder}, and was not to be had within the lock_timeout of "
            f"{bound or f'{self._lock_timeout:g} s'}",
            transient=True,
        )
