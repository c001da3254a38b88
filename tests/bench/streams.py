"""Publish one by one, then read in pages of 1000, decode, and save the offset: per event, against a list."""

import trio

import alkstore_trio

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns
from .reference import ReferenceStream

PAGE = 1_000


async def floor(events: int) -> float:
    stream = ReferenceStream(trio.lowlevel.checkpoint_if_cancelled)
    started = clock()
    for _ in range(events):
        await stream.publish(PAYLOAD)
    while page := await stream.read("reader", PAGE):
        for _, body in page:
            stream.decode(body)
        await stream.save("reader", page[-1][0])
    return (clock() - started) / events


async def store(events: int) -> float:
    async with alkstore_trio.open_memory() as opened:
        stream = opened.stream("bench")
        started = clock()
        for _ in range(events):
            await stream.publish(PAYLOAD)
        while page := await stream.read_from_consumer("reader", PAGE):
            for event in page:
                event.payload  # noqa: B018  # decodes
            await stream.save_offset("reader", page[-1].offset)
        return (clock() - started) / events


def main(*, quick: bool) -> None:
    events, rounds = (PAGE, 1) if quick else (5 * PAGE, 31)
    samples = Samples("publish + read + decode + save, per event")
    for name in turns(("list", "stream"), rounds):
        work = floor if name == "list" else store
        samples.add(name, on_loop("trio", lambda: work(events)))  # noqa: B023  # called at once
    samples.times()
    samples.ratio("stream", "list", "at most 1.5")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
