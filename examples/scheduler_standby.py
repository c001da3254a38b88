"""A scheduler with a standby: two runners in one nursery, of which one leads and the other waits its turn.

The clock is stepped by hand, so that minutes pass at once. With the host's clock, leave out ``clock=`` and the steps.

    python examples/scheduler_standby.py
"""

from functools import partial

import anyio
from anyio.abc import TaskGroup, TaskStatus

from alkstore_trio import Job, StopToken, Store, open_memory
from alkstore_trio.testing import ManualClock


async def clean(job: Job) -> None:
    """What the schedule is for: an ordinary handler of ordinary jobs."""
    print(f"cleaning {job.payload['folder']}: job {job.id}")


async def report_leader(store: Store, name: str, stop: StopToken, *, task_status: TaskStatus[None]) -> None:
    """Run the schedules, or stand by to, and say when it leads."""
    task_status.started()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(store.run_schedules, stop, standby=True))  # returns once it leads
        print(f"{name} leads")
    print(f"{name} stopped")


async def start_runner(tasks: TaskGroup, store: Store, name: str) -> StopToken:
    """A runner in the nursery; its token stops it."""
    stop = StopToken()
    await tasks.start(report_leader, store, name, stop)
    return stop


async def go_on(clock: ManualClock, seconds: int) -> None:
    """Let time pass in steps that are short beside the leader's lease of 10 s, which it renews every 2 s."""
    for _ in range(seconds // 2):
        await clock.settled()
        clock.advance(2)
    await clock.settled()


async def main() -> None:
    """Let the leader fire twice, stop it, and let the standby go on."""
    clock = ManualClock()
    async with open_memory(clock=clock) as store, anyio.create_task_group() as tasks:
        await store.schedule("clean", "@every 1m", "cleaning", {"folder": "/tmp"})
        await tasks.start(store.queue("cleaning").run_worker, clean)
        first = await start_runner(tasks, store, "first")
        await clock.settled()
        second = await start_runner(tasks, store, "second")

        await go_on(clock, 120)
        first.cancel()
        await go_on(clock, 60)  # the standby takes over within 2 s, and the grid goes on
        second.cancel()
        await clock.settled()
        tasks.cancel_scope.cancel()  # the worker has no token of its own


if __name__ == "__main__":
    anyio.run(main, backend="trio")
