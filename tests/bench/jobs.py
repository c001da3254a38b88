"""A job through enqueue, claim and ack: one at a time and in batches of 100, against the reference loop.

The reference decodes each payload as it claims. The store decodes a payload when it is asked for, so the rows named
"payload read" ask for each, and the others do not.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

import alkstore_trio

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns
from .reference import ReferenceQueue

BATCH = 100


async def reference(jobs: int) -> float:
    queue = ReferenceQueue(trio.lowlevel.checkpoint_if_cancelled)
    started = clock()
    for _ in range(jobs):
        await queue.enqueue(PAYLOAD)
        claimed = await queue.claim("worker")
        assert claimed is not None
        await queue.ack(claimed[0])
    return (clock() - started) / jobs


async def single(jobs: int, *, read: bool) -> float:
    async with alkstore_trio.open_memory() as store:
        queue = store.queue("bench")
        started = clock()
        for _ in range(jobs):
            await queue.enqueue(PAYLOAD)
            handle = await queue.claim("worker")
            assert handle is not None
            if read:
                handle.job.payload  # noqa: B018  # decodes
            await handle.ack()
        return (clock() - started) / jobs


async def batched(jobs: int, *, read: bool) -> float:
    async with alkstore_trio.open_memory() as store:
        queue = store.queue("bench")
        payloads = [PAYLOAD] * BATCH
        started = clock()
        for _ in range(jobs // BATCH):
            await queue.enqueue_many(payloads)
            handles = await queue.claim_batch("worker", BATCH)
            if read:
                for handle in handles:
                    handle.job.payload  # noqa: B018  # decodes
            await queue.ack_batch(handles)
        return (clock() - started) / jobs


def main(*, quick: bool) -> None:
    jobs, rounds = (BATCH, 1) if quick else (2_000, 41)
    contenders: dict[str, tuple[str, Callable[[int], Awaitable[float]]]] = {
        "reference": ("trio", reference),
        "one": ("trio", partial(single, read=False)),
        "one, payload read": ("trio", partial(single, read=True)),
        "batch": ("trio", partial(batched, read=False)),
        "batch, payload read": ("trio", partial(batched, read=True)),
        "one on asyncio": ("asyncio", partial(single, read=False)),
        "batch on asyncio": ("asyncio", partial(batched, read=False)),
    }
    samples = Samples("enqueue + claim + ack, per job")
    for name in turns(contenders, rounds):
        loop, work = contenders[name]
        samples.add(name, on_loop(loop, partial(work, jobs)))
    samples.times()
    samples.ratio("one", "reference", "at most 2.0")
    samples.ratio("one, payload read", "reference")
    samples.ratio("batch", "reference", "at most 1.0")
    samples.ratio("batch, payload read", "reference")
    samples.ratio("one on asyncio", "one", "at most 1.15")
    samples.ratio("batch on asyncio", "batch", "at most 1.15")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
