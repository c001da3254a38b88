"""Driving by hand what otherwise runs in the background."""

from collections.abc import Awaitable, Callable
from uuid import uuid4

from .._errors import LeadershipLost
from .._lock import LockHandle, take
from .._queue import Queue
from .._rules import bounds, names
from .._rules.bounds import Seconds
from .._runner import TTL, new_lease
from .._runner import tick as tick_under
from .._store import Store
from .._values import Job
from .._waiting import give_back
from .._worker import carry_out, handling

__all__ = ["drain", "hold_lease", "tick"]


async def tick(store: Store) -> int:
    """One tick of the scheduler, under a lease that it takes and gives back. Returns the number of fires.

    `LeadershipLost` if somebody else holds the lease.
    """
    lock = await hold_lease(store, f"tick-{uuid4().hex}", TTL)
    if lock is None:
        raise LeadershipLost("the scheduler's lease is held by another runner")
    try:
        fires, _ = await tick_under(store._engine, new_lease(store._engine, lock))
    finally:
        await give_back(lock.release)
    return fires


async def hold_lease(store: Store, owner: str, ttl: Seconds) -> LockHandle | None:
    """The scheduler's lease, as another leader would hold it; ``None`` if somebody else does."""
    return await take(store._engine, names.LEADER, names.local(owner), bounds.duration(ttl, "ttl"))


async def drain(queue: Queue, handler: Callable[[Job], Awaitable[object]]) -> int:
    """Run ``await handler(job)`` for every job that is ready, as a worker would. Returns how many were run."""
    task = handling(handler)
    worker_id = f"drain-{uuid4().hex}"
    ran = 0
    while (handle := await queue.claim(worker_id)) is not None:
        verdict = await carry_out(handle, task)
        await (verdict or handle.ack)()
        ran += 1
    return ran
