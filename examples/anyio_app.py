"""An anyio application, here on asyncio: three replicas share one report that is expensive to make.

Each of them waits for the lock; the first one in makes the report and wakes whoever listens, the others find it made.
A wake is a hint and carries nothing: the report itself is read from its stream.

    python examples/anyio_app.py
"""

import anyio
from anyio.abc import TaskStatus

from alkstore_trio import LockHandle, Store, open_memory


async def make_report(store: Store, lock: LockHandle) -> None:
    """Publish the report and wake its readers, once both stand."""
    async with store.transaction() as tx:
        await tx.publish_tx("reports", {"visitors": 1200, "fence": lock.token})
        await tx.notify_tx("report-is-out")


async def replica(store: Store, outcomes: list[str]) -> None:
    """See to it that there is a report, whoever makes it."""
    async with store.hold_lock("report", ttl=30) as lock:
        if await store.stream("reports").read_since(0, 1):
            outcomes.append("found it")
        else:
            await make_report(store, lock)
            outcomes.append("made it")


async def reader(store: Store, *, task_status: TaskStatus[None]) -> None:
    """Wait until there is a report: attach first, then look, then wait."""
    async with store.listen("report-is-out") as wakes:
        task_status.started()
        while not (events := await store.stream("reports").read_since(0, 1)):
            await wakes.receive()
        print(f"reader: {events[0].payload['visitors']} visitors")


async def main() -> None:
    """Start a reader and three replicas."""
    outcomes: list[str] = []
    async with open_memory() as store, anyio.create_task_group() as tasks:
        await tasks.start(reader, store)
        for _ in range(3):
            tasks.start_soon(replica, store, outcomes)
    print(f"replicas: {', '.join(outcomes)}")


if __name__ == "__main__":
    anyio.run(main, backend="asyncio")
