"""A worker pool that stops gracefully: on SIGTERM what runs is finished, and what has not begun stays in the queue.

The third job sends the signal to this very process, so that there is something to see.

    python examples/worker_pool.py
"""

import signal
from functools import partial

import anyio
from anyio.abc import TaskStatus

from alkstore_trio import Discard, Job, StopToken, Store, open_memory

JOBS = 8


async def stop_on_signal(stop: StopToken, *, task_status: TaskStatus[None]) -> None:
    """Turn the first SIGTERM or SIGINT into a request to stop; Windows has no such receiver."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            print(f"{number.name}: finishing what runs")
            stop.cancel()
            return


async def run_until_stopped(store: Store) -> list[int]:
    """Work in three tasks until a signal comes; returns what was finished, in order."""
    stop = StopToken()
    finished: list[int] = []

    async def work(job: Job) -> None:
        number = job.payload["number"]
        if number == 0:
            raise Discard("there is no page 0")  # no retry would help: it goes to the dead at once
        if number == 3:
            signal.raise_signal(signal.SIGTERM)
        await stop.wait()  # stands for work that is under way when the signal comes
        finished.append(number)

    pool = partial(store.queue("pages").run_worker, work, concurrency=3, stop=stop, grace=10)
    async with anyio.create_task_group() as tasks:
        await tasks.start(stop_on_signal, stop)
        await tasks.start(pool)
    return sorted(finished)


async def main() -> None:
    """Stop a pool in the middle and look at what is left; the next start goes on with it."""
    async with open_memory() as store:
        pages = store.queue("pages")
        await pages.enqueue_many([{"number": number} for number in range(JOBS)])
        print("finished:", await run_until_stopped(store))

        left = await pages.statistics()
        print(f"left: {left.ready} ready, {left.dead} dead, {left.processing} in nobody's hands")
        dead = await pages.jobs(limit=1)
        print("dead:", dead[0].last_error)


if __name__ == "__main__":
    anyio.run(main, backend="trio")
