"""A claim in front of a backlog: 1,000, 100,000 and 1,000,000 pending jobs, a tenth of them delayed (at most 100,000),
in mixed priorities, few and many. What is claimed is acked and replaced, untimed, so that the backlog stays.
"""

import random
from functools import partial

import alkstore_trio
from alkstore_trio import Queue, Store

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns

CHUNK = 10  # jobs of one priority in a row


async def fill(store: Store, pending: int, priorities: int) -> Queue:
    """A queue with a backlog; the delayed jobs are spread over an hour, those of the first minute not among them."""
    queue = store.queue(f"{pending} pending, {priorities} priorities")
    delayed = min(pending // 10, 100_000)
    dice = random.Random(pending)
    for _ in range((pending - delayed) // CHUNK):
        await queue.enqueue_many([PAYLOAD] * CHUNK, priority=dice.randrange(priorities))
    for _ in range(delayed):
        await queue.enqueue(PAYLOAD, delay=dice.uniform(60, 3600), priority=dice.randrange(priorities))
    return queue


async def claims(queue: Queue, times: int, priorities: int) -> float:
    """Seconds per claim."""
    dice = random.Random(times)
    taken = 0.0
    for _ in range(times):
        started = clock()
        handle = await queue.claim("worker")
        taken += clock() - started
        assert handle is not None
        await handle.ack()
        await queue.enqueue(PAYLOAD, priority=dice.randrange(priorities))
    return taken / times


async def measure(sizes: list[int], spread: int, times: int, rounds: int) -> None:
    samples = Samples(f"claim in front of a backlog with {spread:,} priorities")
    async with alkstore_trio.open_memory() as store:
        queues = {f"{size:,} pending": await fill(store, size, spread) for size in sizes}
        for name in turns(queues, rounds):
            samples.add(name, await claims(queues[name], times, spread))
    samples.times()
    first, *others = queues
    for name in others:
        samples.ratio(name, first, "at most 2" if name is others[-1] else "")


def main(*, quick: bool) -> None:
    sizes, times, rounds = ([20, 200], 10, 1) if quick else ([1_000, 100_000, 1_000_000], 1_000, 21)
    for priorities in (8, 1_000):
        on_loop("trio", partial(measure, sizes, priorities, times, rounds))


if __name__ == "__main__":
    main(quick=arguments(__doc__))
