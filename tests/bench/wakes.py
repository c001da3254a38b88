"""From a notify to its resumed listener, against a bare ``trio.Event``; and a loop of verbs beside another task."""

from statistics import median
from time import perf_counter

import trio
import trio.testing

import alkstore_trio

from .harness import Samples, arguments, clock, on_loop, turns


async def bare_event(times: int) -> float:
    ready = [trio.Event() for _ in range(times + 1)]
    answered = [trio.Event() for _ in range(times + 1)]

    async def listen() -> None:
        for number in range(times):
            await ready[number].wait()
            answered[number].set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        started = clock()
        for number in range(times):
            ready[number].set()
            await answered[number].wait()
        return (clock() - started) / times


async def notified(times: int) -> float:
    answered = [trio.Event() for _ in range(times + 1)]
    async with alkstore_trio.open_memory() as store, store.listen("bench") as wakes:

        async def listen() -> None:
            for number in range(times):
                await wakes.receive()
                answered[number].set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            started = clock()
            for number in range(times):
                await store.notify("bench")
                await answered[number].wait()
            return (clock() - started) / times


async def gaps(verbs: int) -> list[float]:
    """Seconds between two turns of another task beside a loop of verbs that never blocks."""
    seen: list[float] = []

    async def watch() -> None:
        before = perf_counter()
        while True:
            await trio.lowlevel.checkpoint()
            now = perf_counter()
            seen.append(now - before)
            before = now

    async with alkstore_trio.open_memory() as store, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        queue = store.queue("bench")
        for _ in range(verbs):
            await queue.statistics()
        nursery.cancel_scope.cancel()
    return sorted(seen)


def main(*, quick: bool) -> None:
    times, rounds = (50, 1) if quick else (2_000, 31)
    samples = Samples("a wake of a resumed listener")
    contenders = {"trio.Event": bare_event, "notify": notified}
    for name in turns(contenders, rounds):
        samples.add(name, on_loop("trio", lambda: contenders[name](times)))  # noqa: B023  # called at once
    samples.times()
    samples.ratio("notify", "trio.Event", "at most 2")
    seen = on_loop("trio", lambda: gaps(200 if quick else 50_000))
    print("\nanother task's gap beside a loop of verbs")
    for label, seconds in (("p50", median(seen)), ("p99", seen[int(len(seen) * 0.99)]), ("max", seen[-1])):
        print(f"  {label:44} {seconds * 1e6:9.0f} us")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
