"""Transactions of 10 and of 10,000 effects, per effect, against the same effects auto-committed."""

from functools import partial

import alkstore_trio

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns


async def auto_committed(effects: int, times: int) -> float:
    async with alkstore_trio.open_memory() as store:
        queue, stream = store.queue("bench"), store.stream("bench")
        started = clock()
        for _ in range(times * effects // 2):
            await queue.enqueue(PAYLOAD)
            await stream.publish(PAYLOAD)
        return (clock() - started) / (times * effects)


async def in_transactions(effects: int, times: int) -> float:
    async with alkstore_trio.open_memory() as store:
        started = clock()
        for _ in range(times):
            async with store.transaction() as tx:
                for _ in range(effects // 2):
                    await tx.enqueue_tx("bench", PAYLOAD)
                    await tx.publish_tx("bench", PAYLOAD)
        return (clock() - started) / (times * effects)


def main(*, quick: bool) -> None:
    rounds = 1 if quick else 21
    for effects, times, goal in ((10, 1 if quick else 200, "at most 1.5"), (10_000, 1, "at most 1.4")):
        samples = Samples(f"a transaction of {effects:,} effects, per effect")
        contenders = {"auto-committed": auto_committed, "transaction": in_transactions}
        for name in turns(contenders, rounds):
            samples.add(name, on_loop("trio", partial(contenders[name], effects, times)))
        samples.times()
        samples.ratio("transaction", "auto-committed", goal)


if __name__ == "__main__":
    main(quick=arguments(__doc__))
