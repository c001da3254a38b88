"""Bytes that a pending small job costs at 100,000 of them, by tracemalloc: plain, delayed, expiring.

Each job has a payload of its own, and its text counts.
"""

import gc
import random
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial

import alkstore_trio
from alkstore_trio import Queue

from .harness import PAYLOAD, arguments, on_loop


async def plain(queue: Queue, number: int) -> None:
    await queue.enqueue({**PAYLOAD, "id": number})


async def delayed(queue: Queue, number: int) -> None:
    await queue.enqueue({**PAYLOAD, "id": number}, delay=random.uniform(60, 3600))


async def expiring(queue: Queue, number: int) -> None:
    await queue.enqueue({**PAYLOAD, "id": number}, expires=random.uniform(60, 3600))


async def bytes_each(enqueue: Callable[[Queue, int], Awaitable[None]], jobs: int) -> float:
    async with alkstore_trio.open_memory() as store:
        queue = store.queue("bench")
        gc.collect()
        tracemalloc.start()
        for number in range(jobs):
            await enqueue(queue, number)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used / jobs


def main(*, quick: bool) -> None:
    jobs = 1_000 if quick else 100_000
    print(f"\nmemory per pending job at {jobs:,}")
    for name, enqueue in (("plain", plain), ("delayed", delayed), ("expiring", expiring)):
        print(f"  {name:20} {on_loop('trio', partial(bytes_each, enqueue, jobs)):6.0f} bytes   at most 450")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
