"""Effects of a transaction, committed, against the same effects auto-committed: 10 and 10,000 of them.

The effects alternate between a job and an event, as a handler writes them that answers a job with an event.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import alkstore_trio

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns


async def committed_each(effects: int, times: int) -> float:
    async with alkstore_trio.open_memory() as store:
        queue, stream = store.queue("bench"), store.stream("bench")
        started = clock()
        for _ in range(times):
            for _ in range(effects // 2):
                await queue.enqueue(PAYLOAD)
                await stream.publish(PAYLOAD)
        return (clock() - started) / (effects * times)


async def committed_at_once(effects: int, times: int) -> float:
    async with alkstore_trio.open_memory() as store:
        started = clock()
        for _ in range(times):
            async with store.transaction() as tx:
                for _ in range(effects // 2):
                    await tx.enqueue_tx("bench", PAYLOAD)
                    await tx.publish_tx("bench", PAYLOAD)
        return (clock() - started) / (effects * times)


def main(*, quick: bool) -> None:
    many, total, rounds = (100, 100, 1) if quick else (10_000, 10_000, 21)
    contenders: dict[str, Callable[[], Awaitable[float]]] = {
        "auto-committed": partial(committed_each, 10, total // 10),
        "in transactions of 10": partial(committed_at_once, 10, total // 10),
        f"in one of {many:,}": partial(committed_at_once, many, total // many),
    }
    samples = Samples("jobs and events in turn, per effect")
    for name in turns(contenders, rounds):
        samples.add(name, on_loop("trio", contenders[name]))
    samples.times()
    samples.ratio("in transactions of 10", "auto-committed", "at most 1.5")
    samples.ratio(f"in one of {many:,}", "auto-committed", "at most 1.4")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
