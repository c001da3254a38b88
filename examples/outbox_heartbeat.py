"""An outbox whose delivery takes longer than its claim: it renews the claim after each part of an upload.

A delivery gets the raw claim, here 60 seconds, and the store sends no heartbeat for it. The first try breaks off in the
middle; the next one asks the receiver what it has and goes on from there, so that a repeated delivery does no harm.
The clock is stepped by hand: each part "takes" 25 seconds.

    python examples/outbox_heartbeat.py
"""

from functools import partial

import anyio

from alkstore_trio import JobHandle, StopToken, open_memory
from alkstore_trio.testing import ManualClock

PARTS = 6
SECONDS_PER_PART = 25


class Receiver:
    """The other side. It knows an upload by its key, whatever happens to the connection."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._line_breaks = True
        self.parts: dict[int, list[int]] = {}

    async def put(self, key: int, part: int) -> None:
        """Take a part, slowly; the line breaks once."""
        self._clock.advance(SECONDS_PER_PART)
        if part == 2 and self._line_breaks:
            self._line_breaks = False
            raise ConnectionError("the line broke")
        self.parts.setdefault(key, []).append(part)


async def upload(receiver: Receiver, stop: StopToken, handle: JobHandle) -> None:
    """Deliver one upload; what it raises is retried on the backoff curve."""
    job = handle.job
    done = len(receiver.parts.get(job.id, ()))
    print(f"attempt {job.attempts}: {job.payload['file']} from part {done + 1}")
    for part in range(done, PARTS):
        await receiver.put(job.id, part)
        if not await handle.heartbeat():
            return  # lost: another delivery has it, and this one must do no more
    print(f"delivered {receiver.parts[job.id]}")
    stop.cancel()


async def main() -> None:
    """Order an upload in the transaction that it belongs to, and deliver it."""
    clock, stop = ManualClock(), StopToken()
    receiver = Receiver(clock)
    async with open_memory(clock=clock) as store:
        async with store.transaction() as tx:
            await tx.publish_tx("films", {"file": "film.mkv", "state": "cut"})
            await tx.outbox_enqueue_tx("uploads", {"file": "film.mkv"})

        uploads = store.outbox("uploads")
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(uploads.run_delivery, partial(upload, receiver, stop), stop=stop))
            while not stop.cancel_called:
                await clock.settled()
                clock.advance(1)
        print("left to deliver:", len(await uploads.jobs()))


if __name__ == "__main__":
    anyio.run(main, backend="trio")
