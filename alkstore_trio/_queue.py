"""A queue: jobs in, claims out, and a handle on each claim."""

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus

from ._engine import Unit
from ._ops import (
    Ack,
    Claim,
    CountJobs,
    Delete,
    Enqueue,
    Fail,
    GetJob,
    Heartbeat,
    Jobs,
    Move,
    NextReadyAt,
    Release,
    Retry,
    Revive,
    Sweep,
)
from ._rules import bounds, names, queue
from ._rules.bounds import Instant, Seconds
from ._rules.payload import encode
from ._rules.queue import JobRow
from ._rules.stamps import PLAIN, Stamps, overridden
from ._values import Job, JobState, QueueStatistics, job_of
from ._waiting import StopToken

__all__ = ["BackedByQueue", "JobHandle", "Queue", "ack_together", "heartbeat_together", "release_together"]

A = TypeVar("A")


class JobHandle:
    """A claim of a job. It can do nothing once its claim is no longer the valid one.

    `ack`, `retry`, `fail` and `release` each settle it: the first decides, a later one returns ``False``. One that was
    cancelled, or raised, has settled nothing.
    """

    __slots__ = ("_job", "_row", "_settled", "_unit")

    def __init__(self, unit: Unit, row: JobRow) -> None:
        self._unit = unit
        self._row = row
        self._job: Job | None = None
        self._settled = False

    def __repr__(self) -> str:
        return f"JobHandle({self._row.queue!r}, id={self._row.id})"

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            self._job = job_of(self._row)
        return self._job

    async def ack(self) -> bool:
        """The work is done: delete the job. ``False``: the claim was not valid, the job is as it was."""
        row = self._row
        return await self._settle(Ack(row.queue, ((row.id, row.token),)))

    async def fail(self, error: str) -> bool:
        """Kill the job with a text. ``False``: the claim was not valid, the job is as it was."""
        return await self._settle(Fail(self._row.queue, self._row.id, self._row.token, queue.cleaned(error)))

    async def retry(self, error: str, delay: Seconds | None = None) -> bool:
        """Have the job claimed again in ``delay`` seconds (``None``: its backoff); kill it if it has no attempt left.

        ``False``: the claim was not valid, the job is as it was.
        """
        text = queue.cleaned(error)
        seconds = None if delay is None else bounds.span(delay, "delay")
        op = Retry(self._row.queue, self._row.id, self._row.token, text, seconds, random.random())
        return await self._settle(op)

    async def release(self, delay: Seconds | None = None) -> bool:
        """Give the job back with its attempt refunded, ready as before or in ``delay`` seconds.

        ``False``: the claim was not valid, the job is as it was.
        """
        seconds = None if delay is None else bounds.span(delay, "delay")
        row = self._row
        return await self._settle(Release(row.queue, ((row.id, row.token),), seconds))

    async def heartbeat(self, extend: Seconds | None = None) -> bool:
        """Hold the claim for ``extend`` seconds from now (``None``: the visibility timeout).

        ``False``: the claim is not valid, or the handle is settled.
        """
        seconds = None if extend is None else bounds.duration(extend, "extend")
        if self._settled:
            await self._unit.idle()
            return False
        row = self._row
        extended = await self._unit.do(Heartbeat(row.queue, ((row.id, row.token),), seconds))
        return bool(extended)

    async def _settle(self, op: Move[Any]) -> bool:
        if self._settled:
            await self._unit.idle()
            return False
        self._settled = True
        try:
            return bool(await self._unit.do(op))
        except BaseException:
            self._settled = False
            raise


async def ack_together(unit: Unit, queue: str, unsettled: Iterable[JobHandle]) -> int:
    """Ack claims of a queue at once; how many landed."""
    handles = list(unsettled)
    return await _settle_together(unit, Ack(queue, _claims(handles)), handles)


async def release_together(unit: Unit, queue: str, unsettled: Iterable[JobHandle]) -> None:
    """Release claims of a queue at once."""
    handles = list(unsettled)
    await _settle_together(unit, Release(queue, _claims(handles), None), handles)


async def heartbeat_together(unit: Unit, queue: str, unsettled: Iterable[JobHandle]) -> set[JobHandle]:
    """Extend claims of a queue at once, each by its visibility timeout; those that were not valid."""
    handles = list(unsettled)
    extended = await unit.do(Heartbeat(queue, _claims(handles), None))
    valid = set(extended)
    return {handle for handle in handles if (handle._row.id, handle._row.token) not in valid}


def _claims(handles: Iterable[JobHandle]) -> tuple[tuple[int, int], ...]:
    return tuple((handle._row.id, handle._row.token) for handle in handles)


async def _settle_together(unit: Unit, op: Move[A], handles: list[JobHandle]) -> A:
    for handle in handles:
        handle._settled = True
    try:
        return await unit.do(op)
    except BaseException:
        for handle in handles:
            handle._settled = False
        raise


class BackedByQueue:
    """What a queue and an outbox have in common: rows of one queue, enqueued with the stamps of the handle."""

    __slots__ = ("_queue", "_stamps", "_unit", "name")

    def __init__(self, unit: Unit, name: str, queue: str, stamps: Stamps) -> None:
        self._unit = unit
        self.name: str = name
        self._queue = queue
        self._stamps = stamps

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def enqueue(
        self,
        payload: Any,
        *,
        delay: Seconds | None = None,
        run_at: Instant | None = None,
        priority: int = 0,
        expires: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> int:
        """Add a job and wake the workers. Returns its id.

        It is ready now, in ``delay`` seconds or at ``run_at``; a higher ``priority`` goes first; ``expires`` seconds
        from now it is no longer claimed; ``max_attempts`` overrides the handle's. ``CodecError`` if the payload is no
        JSON.
        """
        op = self._enqueue((encode(payload),), delay, run_at, priority, expires, max_attempts)
        return (await self._unit.do(op))[0]

    def _enqueue(
        self,
        bodies: tuple[str, ...],
        delay: Seconds | None,
        run_at: Instant | None,
        priority: int,
        expires: Seconds | None,
        max_attempts: int | None,
    ) -> Enqueue:
        return Enqueue(
            self._queue,
            bodies,
            self._stamps if max_attempts is None else overridden(self._stamps, max_attempts),
            None if delay is None else bounds.span(delay, "delay"),
            None if run_at is None else bounds.instant(run_at, "run_at"),
            bounds.stored(priority, "priority"),
            None if expires is None else bounds.span(expires, "expires"),
        )

    async def get_job(self, job_id: int) -> Job | None:
        """A job of this queue, a dead one too; ``None`` once it is acked, or if it never was here."""
        row = await self._unit.do(GetJob(self._queue, bounds.offset(job_id, "job_id")))
        return None if row is None else job_of(row)

    async def jobs(self, state: JobState | None = None, *, limit: int = 100, after: int = 0) -> list[Job]:
        """Up to ``limit`` jobs with an id above ``after``, ascending, of one state or all."""
        if state is not None and not isinstance(state, JobState):
            raise TypeError(f"state must be a JobState or None, not {type(state).__name__}")
        op = Jobs(self._queue, state, bounds.extent(limit, "limit"), bounds.offset(after, "after"))
        if op.limit:
            return [job_of(row) for row in await self._unit.do(op)]
        await self._unit.idle()
        return []

    async def statistics(self) -> QueueStatistics:
        """How many jobs are pending, processing and dead, and how many a claim would take now."""
        return await self._unit.do(CountJobs(self._queue))

    async def sweep_expired(self) -> int:
        """Delete the dead past their retention and bury the expired. Returns how many in all."""
        return await self._unit.do(Sweep(self._queue))

    async def revive(self, job_ids: Iterable[int]) -> int:
        """Make dead jobs pending, as if they were new, and wake the workers. Returns how many."""
        return await self._unit.do(Revive(self._queue, bounds.ids(job_ids)))

    async def delete(self, job_ids: Iterable[int]) -> int:
        """Delete jobs; one under a valid claim is left alone. Returns how many."""
        return await self._unit.do(Delete(self._queue, bounds.ids(job_ids)))


class Queue(BackedByQueue):
    """A handle on the queue of a name. Made by ``store.queue``; touches no storage by itself.

    Its options are stamped on the jobs that it enqueues; nothing later looks them up.
    """

    __slots__ = ()

    def __init__(self, unit: Unit, name: str, stamps: Stamps = PLAIN) -> None:
        name = names.shared(name)
        super().__init__(unit, name, name, stamps)

    async def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        delay: Seconds | None = None,
        run_at: Instant | None = None,
        priority: int = 0,
        expires: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> list[int]:
        """Add jobs, all or none, and wake the workers. Returns their ids, in order. Options as for `enqueue`."""
        op = self._enqueue(tuple(map(encode, payloads)), delay, run_at, priority, expires, max_attempts)
        return await self._unit.do(op)

    async def claim(self, worker_id: str) -> JobHandle | None:
        """Claim the first job that is ready; ``None`` if none is."""
        rows = await self._unit.do(Claim(self._queue, names.local(worker_id), 1))
        return JobHandle(self._unit, rows[0]) if rows else None

    async def claim_batch(self, worker_id: str, n: int) -> list[JobHandle]:
        """Claim up to ``n`` jobs, in order, as that many single claims would."""
        op = Claim(self._queue, names.local(worker_id), bounds.extent(n, "n"))
        if op.n:
            return [JobHandle(self._unit, row) for row in await self._unit.do(op)]
        await self._unit.idle()
        return []

    async def ack_batch(self, handles: Iterable[JobHandle]) -> int:
        """Ack each claim that is valid; the others' jobs stay as they were. Returns how many landed.

        ``ValueError`` for a handle of another queue or store.
        """
        unsettled: dict[JobHandle, None] = {}
        for handle in handles:
            if not isinstance(handle, JobHandle):
                raise TypeError(f"ack_batch takes JobHandles, not {type(handle).__name__}")
            if handle._row.queue != self._queue or handle._unit is not self._unit:
                raise ValueError(f"{handle!r} is not a claim of {self!r}")
            if not handle._settled:
                unsettled[handle] = None
        if unsettled:
            return await ack_together(self._unit, self._queue, unsettled)
        await self._unit.idle()
        return 0

    async def next_ready_at(self) -> float | None:
        """When a claim may next find a job, in unix time; not in the future if one would now. ``None``: not as is."""
        return (await self._unit.do(NextReadyAt(self._queue))).at

    async def run_worker(
        self,
        handler: Callable[[Job], Awaitable[object]],
        *,
        worker_id: str | None = None,
        concurrency: int = 1,
        prefetch: int | None = None,
        stop: StopToken | None = None,
        grace: Seconds = 30,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run ``await handler(job)`` for every job, in up to ``concurrency`` tasks, until stopped or cancelled.

        A return acks, an ``Exception`` retries with its text, `Discard` kills, `Snooze` gives back. Each claim is
        renewed while its handler runs, and a lost one cancels it. ``stop`` ends claiming, waits up to ``grace``
        seconds, then cancels the handlers and releases their jobs; cancellation does so at once. ``prefetch`` bounds
        the jobs that wait, claimed, for a free handler. ``started`` is reported once work can be received.

        ``TypeError`` for a handler whose result cannot be awaited; a store failure that does not pass ends the worker.
        """
        from ._worker import Worker, handling

        worker = Worker(self, handling(handler), worker_id, concurrency, prefetch, stop, grace)
        await worker.run(task_status)
