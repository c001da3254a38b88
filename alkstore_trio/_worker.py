"""Workers and deliveries: claim as work becomes ready, run it, settle each claim by how its work ended.

A handler's failure never ends a worker, and nothing that is claimed is dropped: whatever is not settled is released.
"""

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import uuid4

import anyio
import attrs
from anyio.abc import TaskStatus

from ._engine import Engine, Unit
from ._errors import Discard, Snooze
from ._loop import is_cancelling, unbroken
from ._ops import Claim, NextReadyAt, ReadClock, Sweep
from ._queue import BackedByQueue, JobHandle
from ._rules import bounds, names
from ._rules.bounds import Seconds
from ._rules.queue import cleaned, error_text
from ._values import Job
from ._waiting import (
    SLICE,
    Background,
    StopToken,
    bell_on,
    checked_stop,
    elapsed,
    give_back,
    log,
    patiently,
    pause,
    stopping,
)
from ._wake import Bell

__all__ = ["Task", "Worker", "deliver_once", "delivering", "handling"]

_SWEEP_EVERY = 60.0  # seconds of the store's clock
_RENEWALS = 3  # renewals that fit a visibility timeout


@attrs.frozen
class Task:
    """What to do with a claim, and whether its claim is renewed meanwhile."""

    call: Callable[[JobHandle], Awaitable[object]]
    renewed: bool


def handling(handler: Callable[[Job], Awaitable[object]]) -> Task:
    """A worker's handler: it gets the job, and its claim is renewed for it."""
    _check_callable(handler)
    return Task(lambda handle: handler(handle.job), renewed=True)


def delivering(delivery: Callable[[JobHandle], Awaitable[object]]) -> Task:
    """An outbox's delivery: it gets the handle, and renews the claim itself."""
    _check_callable(delivery)
    return Task(delivery, renewed=False)


def _check_callable(function: object) -> None:
    if not callable(function):
        raise TypeError(f"a handler must be an async function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"a handler must be an async function, not the generator function {function!r}")


async def deliver_once(
    unit: Unit, queue: str, worker_id: str, delivery: Callable[[JobHandle], Awaitable[object]]
) -> bool:
    """Claim one job and carry it out; whether there was one."""
    task = delivering(delivery)
    rows = await unit.do(Claim(queue, worker_id, 1))
    if not rows:
        return False
    settle = await carry_out(JobHandle(unit, rows[0]), task)
    await unbroken(settle)
    return True


async def carry_out(handle: JobHandle, task: Task) -> Callable[[], Awaitable[bool]]:
    """Run a task on a claim and say how to settle it. Whatever ends it otherwise, the claim is released."""
    try:
        outcome = task.call(handle)
        awaitable = inspect.isawaitable(outcome)
        if awaitable:
            await outcome
    except (Discard, Snooze) as verdict:
        return _pronounced(handle, verdict)
    except Exception as error:
        return partial(handle.retry, error_text(error))
    except BaseException as error:
        if isinstance(error, anyio.get_cancelled_exc_class()) and not is_cancelling():
            return partial(handle.retry, error_text(error))  # the handler's own, of something that it awaited
        await give_back(handle.release)
        raise
    if not awaitable:
        await give_back(handle.release)
        raise TypeError(
            f"a handler must return an awaitable, not {type(outcome).__name__}: make it an async function, and run "
            "blocking code in it with anyio.to_thread.run_sync"
        )
    return handle.ack


def _pronounced(handle: JobHandle, verdict: Discard | Snooze) -> Callable[[], Awaitable[bool]]:
    """How a handler's verdict settles its claim; one that cannot be carried out is a failure like any other."""
    try:
        if isinstance(verdict, Discard):
            return partial(handle.fail, cleaned(verdict.reason))
        return partial(handle.release, bounds.span(verdict.delay, "the delay of a Snooze"))
    except (TypeError, ValueError) as error:
        return partial(handle.retry, error_text(error))


@attrs.define(eq=False)
class _Held:
    """A claim in this worker's hands."""

    handle: JobHandle
    scope: anyio.CancelScope
    renewed_at: float  # by the store's clock


class Worker:
    """A claimer, up to ``concurrency`` tasks that work, and one that renews what they hold."""

    def __init__(
        self,
        source: BackedByQueue,
        task: Task,
        worker_id: str | None,
        concurrency: int,
        prefetch: int | None,
        stop: StopToken | None,
        grace: Seconds,
    ) -> None:
        self._engine: Engine = source._unit.engine
        self._queue = source._queue
        self._task = task
        self._worker_id = f"worker-{uuid4().hex}" if worker_id is None else names.local(worker_id)
        self._concurrency = bounds.at_least(1, concurrency, "concurrency")
        self._prefetch = self._engine.prefetch if prefetch is None else bounds.at_least(0, prefetch, "prefetch")
        self._stop = checked_stop(stop)
        self._grace = bounds.not_negative(grace, "grace")
        self._held: dict[JobHandle, _Held] = {}
        self._waiting: deque[_Held] = deque()
        self._active = 0
        self._renewal = Bell()
        self._doing = f"worker of {self._queue!r}"

    async def run(self, task_status: TaskStatus[None]) -> None:
        """Work until stopped or cancelled."""
        await self._engine.idle()
        if self._stop is not None and self._stop.cancel_called:
            task_status.started()
            return
        with bell_on(self._engine, names.queue_wake(self._queue)) as bell:
            started = False
            try:
                async with Background() as crew:
                    with stopping(self._stop):
                        await self._sweep()
                        task_status.started()
                        started = True
                        crew.start_soon(self._sweep_on)
                        if self._task.renewed:
                            crew.start_soon(self._renew)
                        await self._claim(crew, bell)
                    await self._wind_down(bell)
            finally:
                await self._release_waiting()
            if not started:
                task_status.started()

    async def _claim(self, crew: Background, bell: Bell) -> None:
        """Claim whatever becomes ready while there is room, for good."""
        while True:
            event = bell.arm()
            room = self._concurrency + self._prefetch - len(self._held)
            if room <= 0:
                await pause(self._engine, SLICE, event)
                continue
            claim = Claim(self._queue, self._worker_id, room)
            rows = await patiently(self._engine, partial(self._engine.do, claim), self._doing)
            for row in rows:
                self._hold(JobHandle(self._engine, row))
            for _ in range(min(self._concurrency - self._active, len(rows))):
                self._active += 1
                crew.start_soon(partial(self._work, bell))
            if len(rows) < room:
                ready = await patiently(self._engine, partial(self._engine.do, NextReadyAt(self._queue)), self._doing)
                await pause(self._engine, SLICE if ready.at is None else ready.at - ready.now, event)

    def _hold(self, handle: JobHandle) -> None:
        job = handle.job
        assert job.claim_expires_at is not None
        held = _Held(handle, anyio.CancelScope(), job.claim_expires_at - job.visibility_timeout)
        self._held[handle] = held
        self._waiting.append(held)
        if job.visibility_timeout < _RENEWALS * SLICE:  # due before the renewer looks again by itself
            self._renewal.ring()

    async def _work(self, bell: Bell) -> None:
        """Carry out what waits, first come first, until nothing does."""
        try:
            while self._waiting and not self._stopped():
                held = self._waiting.popleft()
                try:
                    await self._carry_out(held)
                finally:
                    self._held.pop(held.handle, None)
                    bell.ring()
        finally:
            self._active -= 1
            bell.ring()

    async def _carry_out(self, held: _Held) -> None:
        settle: Callable[[], Awaitable[bool]] | None = None
        try:
            with held.scope:
                settle = await carry_out(held.handle, self._task)
        except Exception as error:
            if not held.scope.cancel_called:
                raise
            log.warning("%s: a handler that was cancelled raised %r", self._doing, error)
        if settle is not None:
            cut_short = held.scope.cancel_called
            with anyio.CancelScope() as held.scope:  # ends only the wait between two attempts
                if cut_short:
                    held.scope.cancel()
                await patiently(self._engine, partial(unbroken, settle), self._doing)

    async def _renew(self) -> None:
        """Renew every claim in time, and cancel the handler of one that is lost."""
        with bell_on(self._engine) as closing:
            self._renewal = closing
            while True:
                event = closing.arm()
                wait = SLICE
                if self._held:
                    now = await patiently(self._engine, partial(self._engine.do, ReadClock()), self._doing)
                    for held in tuple(self._held.values()):
                        interval = held.handle.job.visibility_timeout / _RENEWALS
                        if not held.renewed_at <= now < held.renewed_at + interval:
                            await self._renew_one(held, now)
                        wait = min(wait, held.renewed_at + interval - now)
                await pause(self._engine, wait, event)

    async def _renew_one(self, held: _Held, now: float) -> None:
        renewed = await patiently(self._engine, held.handle.heartbeat, self._doing)
        held.renewed_at = now
        if not renewed and held.handle in self._held and not held.handle._settled:
            log.warning("%s: the claim of job %d was lost", self._doing, held.handle.job.id)
            held.scope.cancel()
            if held in self._waiting:
                self._waiting.remove(held)
                del self._held[held.handle]

    async def _sweep(self) -> None:
        await patiently(self._engine, partial(self._engine.do, Sweep(self._queue)), self._doing)

    async def _sweep_on(self) -> None:
        with bell_on(self._engine) as closing:
            while True:
                await elapsed(self._engine, _SWEEP_EVERY, closing)
                await self._sweep()

    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.cancel_called

    async def _wind_down(self, bell: Bell) -> None:
        """Give back what has not begun, give the rest its grace, then cancel it."""
        await self._release_waiting()
        with anyio.move_on_after(self._grace):
            await self._finished(bell)
        for held in self._held.values():
            held.scope.cancel()
        await self._finished(bell)

    async def _finished(self, bell: Bell) -> None:
        while self._active:
            await bell.arm().wait()

    async def _release_waiting(self) -> None:
        while self._waiting:
            handle = self._waiting.popleft().handle
            self._held.pop(handle, None)
            await give_back(handle.release)
