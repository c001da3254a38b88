"""An event published, then read in pages of 1,000, decoded, and the offset saved: against a list."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

import alkstore_trio

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns
from .reference import ReferenceStream

PAGE = 1_000


async def reference(events: int) -> float:
    stream = ReferenceStream(trio.lowlevel.checkpoint_if_cancelled)
    started = clock()
    for _ in range(events):
        await stream.publish(PAYLOAD)
    while page := await stream.read("consumer", PAGE):
        for _, body in page:
            stream.decode(body)
        await stream.save("consumer", page[-1][0])
    return (clock() - started) / events


async def ours(events: int, *, many: bool) -> float:
    async with alkstore_trio.open_memory() as store:
        stream = store.stream("bench")
        started = clock()
        if many:
            await stream.publish_many([PAYLOAD] * events)
        else:
            for _ in range(events):
                await stream.publish(PAYLOAD)
        while page := await stream.read_from_consumer("consumer", PAGE):
            for event in page:
                event.payload  # noqa: B018  # decodes
            await stream.save_offset("consumer", page[-1].offset)
        return (clock() - started) / events


async def subscribed(events: int) -> float:
    async with alkstore_trio.open_memory() as store:
        stream = store.stream("bench")
        started = clock()
        for _ in range(events):
            await stream.publish(PAYLOAD)
        async with stream.subscribe("consumer", prefetch=PAGE) as received:
            for seen in range(1, events + 1):
                event = await received.receive()
                event.payload  # noqa: B018  # decodes
                if seen % PAGE == 0:
                    await received.save_offset(event.offset)
        return (clock() - started) / events


def main(*, quick: bool) -> None:
    events, rounds = (100, 1) if quick else (3 * PAGE, 31)
    contenders: dict[str, Callable[[int], Awaitable[float]]] = {
        "list": reference,
        "stream": partial(ours, many=False),
        "publish_many": partial(ours, many=True),
        "subscriber": subscribed,
    }
    samples = Samples("publish, read in pages of 1,000, decode, save the offset; per event")
    for name in turns(contenders, rounds):
        samples.add(name, on_loop("trio", partial(contenders[name], events)))
    samples.times()
    samples.ratio("stream", "list", "at most 1.5")
    samples.ratio("publish_many", "list")
    samples.ratio("subscriber", "list")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
