"""Waiting: on the store's clock, on a stop, on a store that is away, and on the tasks that one owns.

Nothing here polls faster than a named interval, and no task is started that its owner does not await.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from ._engine import Engine
from ._errors import CommitUnknown, DatabaseError
from ._loop import unbroken
from ._ops import ReadClock
from ._wake import NO_CHANNEL, Bell

__all__ = [
    "SLICE",
    "Background",
    "StopToken",
    "bell_on",
    "checked_stop",
    "elapsed",
    "give_back",
    "log",
    "nap",
    "passes",
    "patiently",
    "pause",
    "stopping",
]

T = TypeVar("T")

log = logging.getLogger("alkstore_trio")

SLICE = 2.0  # seconds after which whatever waits looks at the store's clock again
_FIRST_RETRY = 0.05  # seconds before a store that was away is asked again, doubled each time
_LAST_RETRY = 5.0
_LAST_TRY = 5.0  # seconds that a store has to take back what is released on the way out


async def pause(engine: Engine, seconds: float, event: anyio.Event) -> None:
    """Wait for the event, for ``seconds`` or for one slice, whichever ends first.

    The waiting is done by the loop's clock, or by the store's where that can sleep by itself.
    """
    seconds = min(max(seconds, 0.0), SLICE)
    if engine.sleep is None:
        with anyio.move_on_after(seconds):
            await event.wait()
        return
    sleep = engine.sleep
    async with Background() as race:
        with anyio.CancelScope() as waiting:

            async def slept() -> None:
                await sleep(seconds)
                waiting.cancel()

            race.start_soon(slept)
            await event.wait()


async def elapsed(
    engine: Engine, seconds: float, bell: Bell, read: Callable[[], Awaitable[float]] | None = None
) -> None:
    """Wait until the store's clock has gone on by ``seconds``, or was set back; a rung bell makes it look again.

    Without ``read`` a store that is away is waited for.
    """
    ask = read or partial(patiently, engine, partial(engine.do, ReadClock()), "reading the clock")
    began = now = await ask()
    while began <= now < began + seconds:
        event = bell.arm()
        now = await ask()
        await pause(engine, began + seconds - now, event)


async def nap(engine: Engine, seconds: float) -> None:
    """Sleep, by the loop's clock or the store's."""
    await (engine.sleep or anyio.sleep)(seconds)


def passes(error: DatabaseError) -> bool:
    """Whether to ask again what may be asked twice: the store is away, or the answer was lost on its way."""
    return error.transient or error.retryable or isinstance(error, CommitUnknown)


async def patiently(engine: Engine, verb: Callable[[], Awaitable[T]], doing: str) -> T:
    """The result of a verb, asked again with backoff for as long as the store is away."""
    backoff = _FIRST_RETRY
    while True:
        try:
            return await verb()
        except DatabaseError as error:
            if not passes(error):
                raise
            log.warning("%s: %s; trying again", doing, error)
        await nap(engine, backoff * random.uniform(0.5, 1.0))
        backoff = min(backoff * 2, _LAST_RETRY)


@contextmanager
def bell_on(engine: Engine, channel: str = NO_CHANNEL) -> Iterator[Bell]:
    """A bell that rings when the channel fires and when the store closes."""
    bell = Bell()
    engine.hub.attach(channel, bell)
    try:
        yield bell
    finally:
        engine.hub.detach(channel, bell)


async def give_back(verb: Callable[[], Awaitable[object]]) -> None:
    """Release something on the way out: shielded and in bounded time; whatever became of it, the way out goes on."""

    async def in_time() -> None:
        with anyio.move_on_after(_LAST_TRY):
            await verb()

    try:
        await unbroken(in_time)
    except Exception as error:
        log.debug("not given back, will lapse: %s", error)


class StopToken:
    """A request to stop that any number of runners and workers listen to. Made anywhere, cancelled in the loop."""

    def __init__(self) -> None:
        self._cancelled = False
        self._scopes: dict[anyio.CancelScope, None] = {}

    @property
    def cancel_called(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask everybody who listens to stop; a second call does nothing."""
        self._cancelled = True
        for scope in tuple(self._scopes):
            scope.cancel()

    async def wait(self) -> None:
        """Return once the token is cancelled."""
        with self.scope():
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint_if_cancelled()

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """A cancel scope that ends when the token is cancelled, at once if it is already."""
        with anyio.CancelScope() as scope:
            self._scopes[scope] = None
            if self._cancelled:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.pop(scope, None)


def checked_stop(stop: StopToken | None) -> StopToken | None:
    """An argument that is a token or nothing."""
    if stop is not None and not isinstance(stop, StopToken):
        raise TypeError(f"stop must be a StopToken or None, not {type(stop).__name__}")
    return stop


def stopping(stop: StopToken | None) -> AbstractContextManager[anyio.CancelScope]:
    """The scope of a token, or one that nobody ends."""
    return anyio.CancelScope() if stop is None else stop.scope()


class Background:
    """A task group for an owner's helpers: leaving its block ends them, and no error leaves it in a group.

    A helper that fails cancels the block, which then raises that error; an error of the block itself wins.
    """

    def __init__(self) -> None:
        self._group: TaskGroup = anyio.create_task_group()
        self._error: BaseException | None = None

    async def __aenter__(self) -> "Background":
        await self._group.__aenter__()
        return self

    def start_soon(self, helper: Callable[[], Awaitable[object]]) -> None:
        """Run ``await helper()`` until the block is left."""
        self._group.start_soon(self._run, helper)

    async def _run(self, helper: Callable[[], Awaitable[object]]) -> None:
        try:
            await helper()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the block with an error."""
        if self._error is None:
            self._error = error
        self._group.cancel_scope.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        cancelled = anyio.get_cancelled_exc_class()
        self._group.cancel_scope.cancel()
        interrupted = error is None or isinstance(error, cancelled)
        absorbed = False
        interruption: BaseException | None = None
        try:
            if interrupted:  # the group's own scope knows whether the cancellation is its own
                absorbed = bool(await self._group.__aexit__(kind, error, trace))
            else:
                await self._group.__aexit__(None, None, None)
        except BaseExceptionGroup as group:  # trio; only cancellations, since helpers store their errors
            interruption = _first(group)
        except cancelled as bare:  # asyncio
            interruption = bare
        if interrupted and self._error is not None and (error is None or absorbed):
            raise self._error
        if error is None and interruption is not None:
            raise interruption
        return False


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
