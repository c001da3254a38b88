"""A notify until its listener, another task of the loop, is running again: against a bare ``trio.Event``."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

import alkstore_trio

from .harness import Samples, arguments, clock, on_loop, turns


class Echo:
    """An event that can be set again and again."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()


async def bare_event(wakes: int) -> float:
    there, back = Echo(), Echo()

    async def listener() -> None:
        for _ in range(wakes):
            await there.wait()
            back.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener)
        started = clock()
        for _ in range(wakes):
            there.set()
            await back.wait()
        return (clock() - started) / wakes


async def notify(wakes: int) -> float:
    back = Echo()

    async with alkstore_trio.open_memory() as store, trio.open_nursery() as nursery:

        async def listener(task_status: trio.TaskStatus[None]) -> None:
            async with store.listen("bench") as received:
                task_status.started()
                for _ in range(wakes):
                    await received.receive()
                    back.set()

        await nursery.start(listener)
        started = clock()
        for _ in range(wakes):
            await store.notify("bench")
            await back.wait()
        return (clock() - started) / wakes


def main(*, quick: bool) -> None:
    wakes, rounds = (50, 1) if quick else (2_000, 31)
    contenders: dict[str, Callable[[int], Awaitable[float]]] = {"trio.Event": bare_event, "notify": notify}
    samples = Samples("there by what is measured, and back by a trio.Event")
    for name in turns(contenders, rounds):
        samples.add(name, on_loop("trio", partial(contenders[name], wakes)))
    samples.times()
    samples.ratio("notify", "trio.Event", "at most 2")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
