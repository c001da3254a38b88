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
from ._queue import BackedByQueue, JobHandle, ack_together, heartbeat_together, release_together
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

_NO_LUCK = 0.02  # seconds before a job is asked for again that is ready and that no claim gets: it is locked elsewhere
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
    handle = JobHandle(unit, rows[0])
    verdict = await carry_out(handle, task)
    await unbroken(verdict or handle.ack)
    return True


Verdict = Callable[[], Awaitable[bool]]  # how to settle a claim that is not to be acked


async def carry_out(handle: JobHandle, task: Task) -> Verdict | None:
    """Run a task on a claim and say how to settle it, or that it is done. Whatever ends it otherwise releases it."""
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
    return None


def _pronounced(handle: JobHandle, verdict: Discard | Snooze) -> Verdict:
    """How a handler's verdict settles its claim; one that cannot be carried out is a failure like any other."""
    try:
        if isinstance(verdict, Discard):
            return partial(handle.fail, cleaned(verdict.reason))
        return partial(handle.release, bounds.span(verdict.delay, "the delay of a Snooze"))
    except Exception as error:
        return partial(handle.retry, error_text(error))


@attrs.define(eq=False)
class _Held:
    """A claim in this worker's hands."""

    handle: JobHandle
    renewed_at: float  # by the store's clock
    scope: anyio.CancelScope | None = None  # of the task that is at it

    def due_at(self) -> float:
        """When it is to be renewed."""
        return self.renewed_at + self.handle.job.visibility_timeout / _RENEWALS


class Worker:
    """A claimer, up to ``concurrency`` tasks that work, one that acks what they have done, and one that renews."""

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
        self._done: list[_Held] = []  # to be acked
        self._acking = 0  # how many are done, and not acked yet
        self._active = 0
        self._change = Bell()
        self._finished = Bell()
        self._renewal = Bell()
        self._doing = f"worker of {self._queue!r}"

    async def run(self, task_status: TaskStatus[None]) -> None:
        """Work until stopped or cancelled."""
        await self._engine.idle()
        if self._stop is not None and self._stop.cancel_called:
            task_status.started()
            return
        with bell_on(self._engine, names.queue_wake(self._queue)) as self._change:
            started = False
            try:
                async with Background() as crew:
                    with stopping(self._stop):
                        await self._sweep()
                        task_status.started()
                        started = True
                        crew.start_soon(self._sweep_on)
                        crew.start_soon(self._ack)
                        if self._task.renewed:
                            crew.start_soon(self._renew)
                        await self._claim(crew)
                    crew.start_soon(self._release_waiting)
                    await self._wind_down()
            finally:
                await self._let_go()
            if not started:
                task_status.started()

    # Claiming

    async def _claim(self, crew: Background) -> None:
        """Claim whatever becomes ready while there is room, for good."""
        while True:
            event = self._change.arm()
            if not self._wants():
                await pause(self._engine, SLICE, event)
                continue
            room = self._room()
            claim = Claim(self._queue, self._worker_id, room)
            rows = await patiently(self._engine, partial(self._engine.do, claim), self._doing)
            for row in rows:
                self._hold(JobHandle(self._engine, row))
            for _ in range(min(self._concurrency - self._active, len(rows))):
                self._active += 1
                crew.start_soon(self._work)
            if len(rows) < room:
                ready = await patiently(self._engine, partial(self._engine.do, NextReadyAt(self._queue)), self._doing)
                if ready.at is None or ready.at > ready.now:
                    await pause(self._engine, SLICE if ready.at is None else ready.at - ready.now, event)
                elif not rows:
                    with anyio.move_on_after(_NO_LUCK):
                        await event.wait()

    def _room(self) -> int:
        most = self._concurrency + self._prefetch
        free = most - len(self._held)
        # With prefetch, what only waits for its ack makes room for as many more.
        return min(free + self._acking, free + most) if self._prefetch else free

    def _wants(self) -> bool:
        """Whether to claim: when somebody is without work, or half of what may wait is gone."""
        return self._room() > (self._prefetch // 2 if self._waiting else 0)

    def _hold(self, handle: JobHandle) -> None:
        job = handle.job
        assert job.claim_expires_at is not None
        held = _Held(handle, job.claim_expires_at - job.visibility_timeout)
        self._held[handle] = held
        self._waiting.append(held)
        if job.visibility_timeout < _RENEWALS * SLICE:  # due before the renewer looks again by itself
            self._renewal.ring()

    def _drop(self, held: _Held) -> None:
        """The claim is in this worker's hands no longer."""
        self._held.pop(held.handle, None)
        if not self._held or self._wants():
            self._change.ring()

    # Working

    async def _work(self) -> None:
        """Carry out what waits, first come first, until nothing does."""
        try:
            while self._waiting and not self._stopped():
                await self._engine.checkpoint()
                if self._waiting:
                    await self._carry_out(self._waiting.popleft())
        finally:
            self._active -= 1
            self._change.ring()

    async def _carry_out(self, held: _Held) -> None:
        ended, verdict = False, None
        scope = held.scope = anyio.CancelScope()
        try:
            with scope:
                verdict = await carry_out(held.handle, self._task)
                ended = True
            held.scope = None
            if verdict is not None:
                await self._pronounce(held, verdict, cut_short=scope.cancel_called)
        except Exception as error:
            if not scope.cancel_called:
                raise
            log.warning("%s: a handler that was cancelled raised %r", self._doing, error)
        finally:
            if ended and verdict is None:
                self._done.append(held)
                self._acking += 1
                self._finished.ring()
                if self._wants():
                    self._change.ring()
            else:
                self._drop(held)

    async def _pronounce(self, held: _Held, verdict: Verdict, *, cut_short: bool) -> None:
        with anyio.CancelScope() as held.scope:  # ends only the wait between two attempts
            if cut_short:
                held.scope.cancel()
            await patiently(self._engine, partial(unbroken, verdict), self._doing)

    async def _ack(self) -> None:
        """Ack what is done, all that waits together at once, for good."""
        while True:
            event = self._finished.arm()
            if not self._done:
                await event.wait()
            done, self._done = self._done, []
            try:
                handles = _unsettled(done)
                if handles:
                    ack = partial(ack_together, self._engine, self._queue, handles)
                    await patiently(self._engine, partial(unbroken, ack), self._doing)
            finally:
                self._acking -= len(done)
                for held in done:
                    self._drop(held)

    # Renewing

    async def _renew(self) -> None:
        """Renew every claim in time, and cancel the handler of one that is lost."""
        with bell_on(self._engine) as closing:
            self._renewal = closing
            while True:
                event = closing.arm()
                wait = SLICE
                if self._held:
                    now = await patiently(self._engine, partial(self._engine.do, ReadClock()), self._doing)
                    due = [held for held in self._held.values() if not held.renewed_at <= now < held.due_at()]
                    if due:
                        await self._renew_together(due, now)
                    wait = min([wait, *(held.due_at() - now for held in self._held.values())])
                await pause(self._engine, wait, event)

    async def _renew_together(self, due: list[_Held], now: float) -> None:
        lost = await patiently(self._engine, partial(self._heartbeat, due), self._doing)
        for held in due:
            held.renewed_at = now
            if held.handle in lost and self._is_unsettled(held):
                log.warning("%s: the claim of job %d was lost", self._doing, held.handle.job.id)
                if held.scope is not None:
                    held.scope.cancel()
                elif held in self._waiting:
                    self._waiting.remove(held)
                    self._drop(held)

    async def _heartbeat(self, due: list[_Held]) -> set[JobHandle]:
        """Extend what is still to be settled of some claims, at once; those that were lost."""
        handles = [held.handle for held in due if self._is_unsettled(held)]
        return await heartbeat_together(self._engine, self._queue, handles) if handles else set()

    def _is_unsettled(self, held: _Held) -> bool:
        """Whether a claim is in this worker's hands still, and nobody is settling it."""
        return held.handle in self._held and not held.handle._settled

    async def _sweep(self) -> None:
        await patiently(self._engine, partial(self._engine.do, Sweep(self._queue)), self._doing)

    async def _sweep_on(self) -> None:
        with bell_on(self._engine) as closing:
            while True:
                await elapsed(self._engine, _SWEEP_EVERY, closing)
                await self._sweep()

    # Ending

    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.cancel_called

    async def _wind_down(self) -> None:
        """Give what has begun its grace, then cancel it."""
        with anyio.move_on_after(self._grace):
            while self._held:
                await self._change.arm().wait()
        for held in self._held.values():
            if held.scope is not None:
                held.scope.cancel()
        while self._active:
            await self._change.arm().wait()

    async def _let_go(self) -> None:
        """Settle whatever is still held, trying once."""
        handles = _unsettled(self._done)
        if handles:
            await give_back(partial(ack_together, self._engine, self._queue, handles))
        await self._release_waiting()

    async def _release_waiting(self) -> None:
        """Give back what has not begun, all at once."""
        waiting = tuple(self._waiting)
        self._waiting.clear()
        for held in waiting:
            self._drop(held)
        if waiting:
            handles = [held.handle for held in waiting]
            await give_back(partial(release_together, self._engine, self._queue, handles))


def _unsettled(done: list[_Held]) -> list[JobHandle]:
    """The claims of those that have not settled themselves."""
    return [held.handle for held in done if not held.handle._settled]
