"""The scheduler's runner: take the lease, tick, sleep, renew.

Nothing fires without a live lease: every fire is judged by the engine, at the moment it happens.
"""

from functools import partial
from uuid import uuid4

import anyio
from anyio.abc import TaskStatus

from ._engine import Engine
from ._errors import DatabaseError, LeadershipLost
from ._lock import Lease, LockHandle, take, taken
from ._loop import unbroken
from ._ops import Due, DueSchedules, Fire
from ._rules import ticks
from ._rules.names import LEADER, SCHEDULE_WAKE
from ._waiting import SLICE, StopToken, bell_on, checked_stop, give_back, log, pause, stopping

__all__ = ["TTL", "new_lease", "run_schedules", "tick"]

TTL = 10.0  # seconds that a leader's lease lives unless renewed


async def run_schedules(engine: Engine, stop: StopToken | None, standby: bool, task_status: TaskStatus[None]) -> None:
    """Lead until stopped; see `Store.run_schedules`."""
    checked_stop(stop)
    await engine.idle()
    started = False
    while stop is None or not stop.cancel_called:
        lock: LockHandle | None = None
        with stopping(stop) as waiting:
            lock = await (taken if standby else take)(engine, LEADER, f"runner-{uuid4().hex}", TTL)
        if lock is None:
            if waiting.cancel_called:
                break
            raise LeadershipLost("the scheduler's lease is held by another runner")
        try:
            if not started:
                task_status.started()
                started = True
            with stopping(stop):
                await _lead(engine, new_lease(engine, lock))
            await _check_held(lock)
        except LeadershipLost as loss:
            if not standby:
                raise
            log.warning("%s; waiting for a turn", loss)
        finally:
            await give_back(lock.release)
    if not started:
        task_status.started()


def new_lease(engine: Engine, lock: LockHandle) -> Lease:
    """The lease of a runner that has just taken the leader's lock."""
    return Lease(engine, lock, TTL, LeadershipLost)


async def _lead(engine: Engine, lease: Lease) -> None:
    with bell_on(engine, SCHEDULE_WAKE) as bell:
        while True:
            event = bell.arm()
            await lease.renew()
            _, due = await tick(engine, lease)
            await pause(engine, SLICE if due.next_at is None else due.next_at - due.now, event)


async def _check_held(lock: LockHandle) -> None:
    """A loss wins over a simultaneous stop."""
    held = True
    try:
        held = await unbroken(partial(lock.renew, TTL))
    except DatabaseError as error:
        log.debug("stopping without knowing whether the lease was held: %s", error)
    if not held:
        raise LeadershipLost("the scheduler's lease was lost while the runner was being stopped")


async def tick(engine: Engine, lease: Lease) -> tuple[int, Due]:
    """Fire what is due at one reading of the clock: how many fires, and what comes next."""
    due = await lease.ask(partial(engine.do, DueSchedules()))
    fires = 0
    renew_at = anyio.current_time() + SLICE
    for schedule in due.schedules:
        if anyio.current_time() >= renew_at:
            await lease.renew()
            renew_at = anyio.current_time() + SLICE
        times, next_at = ticks.tick(schedule.next_at, schedule.interval, due.now)
        fire = Fire(schedule.name, schedule.next_at, next_at, times, due.now, lease.lock.name, lease.lock.token)
        fired = await lease.ask(partial(engine.do, fire))
        if fired is None:
            raise lease.loss()
        fires += fired.times
        due.next_at = next_at if due.next_at is None else min(due.next_at, next_at)
    return fires, due
