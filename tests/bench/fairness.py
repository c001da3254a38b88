"""How long a loop of verbs that never block keeps another task waiting: the gaps between that task's turns."""

from functools import partial
from statistics import median, quantiles
from time import perf_counter

import anyio

import alkstore_trio

from .harness import PAYLOAD, arguments, on_loop


async def gaps(jobs: int) -> list[float]:
    """The gaps in seconds, by the wall clock: what other processes take of the processor is in the greatest."""
    found: list[float] = []

    async def other() -> None:
        last = perf_counter()
        while True:
            await anyio.lowlevel.checkpoint()
            now = perf_counter()
            found.append(now - last)
            last = now

    async with alkstore_trio.open_memory() as store, anyio.create_task_group() as group:
        group.start_soon(other)
        queue = store.queue("bench")
        for _ in range(jobs):
            await queue.enqueue(PAYLOAD)
            handle = await queue.claim("worker")
            assert handle is not None
            await handle.ack()
        group.cancel_scope.cancel()
    return found[1:]


def main(*, quick: bool) -> None:
    print("\ngaps of another task under a loop of verbs, microseconds")
    for backend in ("trio", "asyncio"):
        found = [gap * 1e6 for gap in on_loop(backend, partial(gaps, 500 if quick else 50_000))]
        high = quantiles(found, n=100)[98]
        print(f"  {backend:10} p50 {median(found):7.0f}   p99 {high:7.0f}   max {max(found):7.0f}")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
