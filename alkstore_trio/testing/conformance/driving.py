"""What the tests of workers, runners and locks stand on: tasks whose end is kept, time in steps, a store to disturb.

Nothing here names an engine or waits for real time: a bound only turns a hang into a failure.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import anyio
import attrs
import pytest
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from ..._errors import CommitUnknown, DatabaseError
from ..._ops import Op
from ..._store import Store
from .._clocks import ManualClock

__all__ = [
    "PASSING",
    "Failing",
    "Failure",
    "Gate",
    "Running",
    "being_cancelled",
    "counted",
    "holds",
    "passing",
    "rest",
    "to_be_cancelled",
    "watched",
]

_BOUND = 30.0  # seconds of real time after which a test hangs
_TURNS = 25  # in which nothing is under way: longer than any chain of wakes here
_WAIT = 5.0  # seconds of real time after which what is under way waits for something else
_LOOKS = 0.0  # seconds of real time in which all who wait look by themselves, where they are not told by wakes
_STEP = 0.5  # seconds of the store's clock


class Background(Protocol):
    """A verb that is hosted by its caller's task group."""

    def __call__(self, *, task_status: TaskStatus[None]) -> Awaitable[object]: ...


@attrs.define(eq=False)
class Running:
    """A verb for a task group, ``await tasks.start(running)``: its error is kept and ends nobody else."""

    verb: Background
    error: Exception | None = None
    _ended: anyio.Event = attrs.field(factory=anyio.Event)

    async def __call__(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            await self.verb(task_status=task_status)
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def end(self, within: float = _BOUND) -> Exception | None:
        """Wait for the end, for so many seconds by the loop's clock: ``None`` is a return."""
        with anyio.fail_after(within):
            await self._ended.wait()
        return self.error


class _Front:
    """An engine in front of another."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def engine(self) -> "_Front":
        return self


class _Counted(_Front):
    """It counts the ops that are under way in the other."""

    under_way = 0

    async def do(self, op: Op[Any]) -> Any:
        self.under_way += 1
        try:
            return await self._inner.do(op)
        finally:
            self.under_way -= 1


def counted(store: Store) -> Store:
    """A front of the store for which `rest` knows what is still under way elsewhere: in a thread, or at a server."""
    engine: Any = _Counted(store._engine)
    return Store(engine)


async def rest(store: Store) -> None:
    """Return once whoever was woken has acted, whatever that took, or waits for what only this task can give."""
    engine: Any = store._engine
    turns = 0
    until = anyio.current_time() + _WAIT
    while turns < _TURNS and anyio.current_time() < until:
        await checkpoint()
        if engine.under_way:
            turns = 0
            await store.queues()  # lets time pass where it is spent
        else:
            turns += 1
    if _LOOKS:
        await anyio.sleep(_LOOKS)
        return
    with anyio.fail_after(_BOUND):
        await anyio.wait_all_tasks_blocked()


async def passing(store: Store, clock: ManualClock, seconds: float, step: float = _STEP) -> None:
    """Let time pass in steps, in each of which everybody who is due acts."""
    await rest(store)
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await rest(store)


@contextmanager
def being_cancelled() -> Iterator[None]:
    """A block that is cancelled from its first checkpoint on, which ends it without an error."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        yield


async def to_be_cancelled() -> None:
    """Wait for a cancellation that must come."""
    await anyio.sleep(_BOUND)
    pytest.fail("not cancelled")


async def holds(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait, while the clock stands still, until the fact holds."""
    with anyio.fail_after(_BOUND):
        while not await fact():
            await checkpoint()


class _Watched(_Front):
    """``before`` gets each op first, and may raise, wait or step the clock."""

    def __init__(self, inner: Any, before: Callable[[Op[Any]], Awaitable[object]]) -> None:
        super().__init__(inner)
        self._before = before

    async def do(self, op: Op[Any]) -> Any:
        await self._before(op)
        return await self._inner.do(op)


def watched(store: Store, before: Callable[[Op[Any]], Awaitable[object]]) -> Store:
    """Another front of the store, each op of which is first given to ``await before(op)``."""
    engine: Any = _Watched(store._engine, before)  # an `Engine` by delegation, which the checkers do not see
    return Store(engine)


class Gate:
    """A ``before`` that holds ops back while it is shut, so that another task goes first."""

    def __init__(self) -> None:
        self._opened: anyio.Event | None = None

    def shut(self) -> None:
        self._opened = anyio.Event()

    def open(self) -> None:
        if self._opened is not None:
            self._opened.set()

    async def __call__(self, op: Op[Any]) -> None:
        if self._opened is not None:
            await self._opened.wait()


Failure = Literal["lasting", "transient", "retryable", "unknown"]

PASSING: tuple[Failure, ...] = ("transient", "retryable", "unknown")


class Failing:
    """A ``before`` that makes the next ``times`` ops of some types fail as a store does that is away."""

    def __init__(
        self, kinds: type[Op[Any]] | Iterable[type[Op[Any]]], times: int, failure: Failure = "lasting"
    ) -> None:
        self._kinds = (kinds,) if isinstance(kinds, type) else tuple(kinds)
        self._failure = failure
        self.times: int = times

    async def __call__(self, op: Op[Any]) -> None:
        if self.times and isinstance(op, self._kinds):
            self.times -= 1
            if self._failure == "unknown":
                raise CommitUnknown("the store is away")
            failure = {} if self._failure == "lasting" else {self._failure: True}
            raise DatabaseError("the store is away", **failure)
