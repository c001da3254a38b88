"""What a backlog costs: a claim in front of a growing one, and the memory of each pending job."""

import gc
import tracemalloc
from functools import partial
from typing import Any

import alkstore_trio

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns

CLAIMS = 300


async def claim(pending: int, delayed: int, priorities: int) -> float:
    """Seconds per claim with so many ready, and so many delayed ones of a higher priority beside them."""
    async with alkstore_trio.open_memory() as store:
        queue = store.queue("bench")
        for priority in range(priorities):
            await queue.enqueue_many([PAYLOAD] * (pending // priorities), priority=priority)
        await queue.enqueue_many([PAYLOAD] * delayed, priority=priorities, delay=3_600)
        gc.collect()
        gc.freeze()
        started = clock()
        for _ in range(CLAIMS):
            await queue.claim("worker")
        seconds = (clock() - started) / CLAIMS
        gc.unfreeze()
        return seconds


async def footprint(jobs: int, options: dict[str, Any]) -> float:
    """Bytes per pending job."""
    async with alkstore_trio.open_memory() as store:
        queue = store.queue("bench")
        gc.collect()
        tracemalloc.start()
        for number in range(jobs):
            await queue.enqueue({"id": number}, **options)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used / jobs


def main(*, quick: bool) -> None:
    sizes, delayed, rounds = ((1_000, 2_000), 100, 1) if quick else ((1_000, 100_000, 1_000_000), 100_000, 3)
    for priorities in (8, 100 if quick else 1_000):
        samples = Samples(f"a claim beside {delayed:,} delayed jobs, {priorities:,} priorities")
        contenders = {f"{size:,} pending": size for size in sizes}
        for name in turns(contenders, rounds):
            samples.add(name, on_loop("trio", partial(claim, contenders[name], delayed, priorities)))
        samples.times()
        first, *_, last = contenders
        samples.ratio(last, first, "at most 2")
    print("\nbytes per pending job")
    kinds: dict[str, dict[str, Any]] = {"ready": {}, "delayed": {"delay": 3_600}, "expiring": {"expires": 3_600}}
    for kind, options in kinds.items():
        used = on_loop("trio", partial(footprint, 1_000 if quick else 100_000, options))
        print(f"  {kind:44} {used:9.0f} bytes  {'at most 450' if kind == 'ready' else ''}".rstrip())


if __name__ == "__main__":
    main(quick=arguments(__doc__))
