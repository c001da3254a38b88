"""The seam to the running loop: the one module that knows what trio and asyncio do differently.

Loops are found at call time, so that the package imports where only one of them exists.
"""

import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import ref

import anyio
from anyio.lowlevel import current_token

__all__ = [
    "TURN",
    "Event",
    "Socket",
    "TaskRef",
    "Turns",
    "asking_task",
    "at_once",
    "call_soon_threadsafe",
    "came_barely",
    "cancel_later",
    "cancellation_check",
    "event_class",
    "full_checkpoint",
    "insist",
    "is_cancelling",
    "loop_time",
    "seen_through",
    "unbroken",
]

T = TypeVar("T")

TURN = 0.0003  # seconds that a run of verbs may keep the loop from other tasks


def _on_trio() -> bool:
    return "trio" in sys.modules and current_token().backend_class.__module__.endswith("trio")


def cancellation_check() -> Callable[[], Awaitable[object]]:
    """The running loop's ``checkpoint_if_cancelled``, without anyio's look-up at each call."""
    if _on_trio():
        check: Callable[[], Awaitable[object]] = sys.modules["trio"].lowlevel.checkpoint_if_cancelled
        return check
    anyio_check = current_token().backend_class.checkpoint_if_cancelled

    def check_on_asyncio() -> Awaitable[object]:
        if _owed:
            _take_what_is_owed()
        return anyio_check()

    return check_on_asyncio


def full_checkpoint() -> Callable[[], Awaitable[object]]:
    """The running loop's ``checkpoint``, likewise."""
    if _on_trio():
        pause: Callable[[], Awaitable[object]] = sys.modules["trio"].lowlevel.checkpoint
        return pause
    return current_token().backend_class.checkpoint


def loop_time() -> Callable[[], float]:
    """The running loop's clock, which may then be read in any thread."""
    if _on_trio():
        time: Callable[[], float] = sys.modules["trio"].lowlevel.current_clock().current_time
        return time
    asyncio_time: Callable[[], float] = current_token().native_token.time  # type: ignore[attr-defined]
    return asyncio_time


class Turns:
    """Cancellation points that let other tasks run once a task has had its turn."""

    __slots__ = ("_pause", "check", "end")

    def __init__(self) -> None:
        self.check: Callable[[], Awaitable[object]] = cancellation_check()
        self._pause = full_checkpoint()
        self.end: float = 0.0  #: of this one, by `perf_counter`: until then `check` will do

    def checkpoint(self) -> Awaitable[object]:
        """One of them, to be awaited at once."""
        return self.check() if perf_counter() < self.end else self.pause()

    async def pause(self) -> None:
        """Let other tasks run, and begin a turn."""
        await self._pause()
        self.end = perf_counter() + TURN


class Event(Protocol):
    """What the running loop's own event can do."""

    def set(self) -> object:
        """Wake whoever waits."""
        ...

    def is_set(self) -> bool:
        """Whether it was set."""
        ...

    async def wait(self) -> object:
        """Wait until it is set."""
        ...


def event_class() -> Callable[[], Event]:
    """The running loop's own event, without what anyio puts around it."""
    event: Callable[[], Event] = sys.modules["trio" if _on_trio() else "asyncio"].Event
    return event


def call_soon_threadsafe() -> Callable[[Callable[[], object]], None]:
    """How to call a function in the running loop from anywhere: another thread, a finalizer, after its end."""
    loop: Any = current_token().native_token
    post = loop.run_sync_soon if _on_trio() else loop.call_soon_threadsafe

    def call_soon(function: Callable[[], object]) -> None:
        try:
            post(function)
        except RuntimeError:  # the loop has ended (trio.RunFinishedError is one), and all that it held with it
            return

    return call_soon


def is_cancelling() -> bool:
    """Whether the current task is being cancelled, by a scope or by a bare ``Task.cancel()``."""
    if anyio.current_effective_deadline() == float("-inf"):
        return True
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is None or _on_trio():
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


TaskRef: TypeAlias = ref[Any]  # equal to those of the same task only, and keeps nothing alive that the task holds

_behalf: dict[Any, TaskRef | None] = {}  # asyncio's tasks that do a verb for another, and for which


def asking_task() -> TaskRef | None:
    """The task that runs, or for which it does a verb; ``None`` in a thread without a loop."""
    try:
        task = (sys.modules["trio"].lowlevel if _on_trio() else sys.modules["asyncio"]).current_task()
    except RuntimeError:
        return None
    return _behalf.get(task) or (None if task is None else ref(task))


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, and needs no loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a unit over a synchronous connection does not wait")


async def unbroken(verb: Callable[[], Awaitable[T]]) -> T:
    """The result of a verb that nothing interrupts: a cancellation is delivered at the caller's next checkpoint."""
    with anyio.CancelScope(shield=True):
        if _on_trio():
            return await verb()
        return await _unbroken_by_the_task(verb)
    raise AssertionError("unreachable: a scope that nobody can cancel swallows nothing")


def _delegated(verb: Callable[[], Awaitable[object]]) -> Any:
    """A task of asyncio's that does a verb for the one that runs."""
    asyncio: Any = sys.modules["asyncio"]
    asking = asking_task()

    async def work() -> object:
        doing = asyncio.current_task()
        _behalf[doing] = asking
        try:
            return await verb()
        finally:
            del _behalf[doing]

    return asyncio.create_task(work())


async def _unbroken_by_the_task(verb: Callable[[], Awaitable[T]]) -> T:
    """A bare ``Task.cancel()`` heeds no shield: have another task do the verb, and hand the cancellation on."""
    asyncio: Any = sys.modules["asyncio"]
    worker = _delegated(verb)
    interrupted = False
    while not worker.done():
        try:
            await asyncio.wait([worker])
        except asyncio.CancelledError:
            interrupted = True
    if interrupted:
        cancel_later()
    result: T = worker.result()
    return result


async def seen_through(verb: Callable[[], Awaitable[T]], call_off: Callable[[Event], Awaitable[object]]) -> T:
    """The result of a verb that nothing interrupts, though a cancellation has it called off; on asyncio only.

    ``call_off`` is given the event of the verb's end, and sees to it that it comes soon. The cancellation is raised at
    once if the verb then raises, and so has done nothing, and else at the caller's next checkpoint.
    """
    worker = _delegated(verb)
    done: Event = event_class()()
    worker.add_done_callback(lambda _: done.set())
    try:
        await done.wait()
    except BaseException as interruption:
        await unbroken(partial(call_off, done))
        await insist(done, interruption, lambda: worker.cancelled() or worker.exception() is not None)
    result: T = worker.result()
    return result


def came_barely() -> bool:
    """Whether a cancellation that has just come is a bare ``Task.cancel()``: a scope's is delivered again by itself."""
    return anyio.current_effective_deadline() > float("-inf")


_owed: set[Any] = set()  # asyncio's tasks to which a cancellation is still to be handed on


def cancel_later() -> None:
    """Hand a ``Task.cancel()`` on that came where it could not be heeded: to the task's next checkpoint."""
    asyncio: Any = sys.modules["asyncio"]
    caller = asyncio.current_task()

    def hand_on() -> None:
        if caller in _owed:
            _owed.discard(caller)
            if caller.cancelling():  # else whoever asked, an ``asyncio.timeout`` say, has ended meanwhile
                caller.uncancel()
                caller.cancel()

    _owed.add(caller)
    asyncio.get_running_loop().call_soon(hand_on)


def _take_what_is_owed() -> None:
    """Raise the cancellation that is to be handed on to this task, before the loop does."""
    asyncio: Any = sys.modules["asyncio"]
    task = asyncio.current_task()
    if task in _owed:
        _owed.discard(task)
        if task.cancelling():
            raise asyncio.CancelledError


async def insist(done: Event, interruption: BaseException, in_vain: Callable[[], bool] = lambda: False) -> None:
    """Wait on for what can no longer be taken back, having been interrupted.

    A cancellation is delivered at the caller's next checkpoint, or at once where it turns out that nothing was done;
    anything else is raised at the end.
    """
    cancelled = anyio.get_cancelled_exc_class()
    bare = came_barely()
    while not done.is_set():
        with anyio.CancelScope(shield=True):
            try:
                await done.wait()
            except cancelled:  # a bare ``Task.cancel()``, which heeds no shield
                bare = True
    if not isinstance(interruption, cancelled) or in_vain():
        raise interruption
    if bare:
        cancel_later()


class Socket:
    """Waits for a socket by the running loop's own means; one task at a time."""

    __slots__ = ("_future", "_loop", "readable")

    def __init__(self) -> None:
        self.readable: Callable[[int], Awaitable[object]] = anyio.wait_readable
        self._future: Any = None
        if not _on_trio() and sys.platform != "win32":
            self._loop: Any = current_token().native_token
            self.readable = self._by_future

    async def _by_future(self, fd: int) -> None:
        future = self._future = self._loop.create_future()
        self._loop.add_reader(fd, self._end, fd)
        try:
            await future
        finally:
            if self._future is future:
                self._loop.remove_reader(fd)
                self._future = None

    def _end(self, fd: int, error: Exception | None = None) -> None:
        self._loop.remove_reader(fd)
        future, self._future = self._future, None
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def closing(self, fd: int) -> None:
        """Wake whoever waits: a closed descriptor leaves the loop without a word."""
        with suppress(RuntimeError):  # there is no loop any more: nobody waits
            anyio.notify_closing(fd)
        if self._future is not None:
            self._end(fd, anyio.ClosedResourceError())
