"""An outbox: messages enqueued in a transaction, delivered at least once, over a queue that nobody else can reach."""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskStatus

from ._engine import Unit
from ._queue import BackedByQueue, JobHandle
from ._rules import names
from ._rules.bounds import Seconds
from ._rules.stamps import OUTBOX
from ._waiting import StopToken

__all__ = ["Outbox"]


class Outbox(BackedByQueue):
    """A handle on the outbox of a name. Made by ``store.outbox``; touches no storage by itself."""

    __slots__ = ()

    def __init__(self, unit: Unit, name: str) -> None:
        name = names.shared(name)
        super().__init__(unit, name, names.backing_queue(name), OUTBOX)

    async def run_once(self, worker_id: str, delivery: Callable[[JobHandle], Awaitable[object]]) -> bool:
        """Pull one job and run ``await delivery(handle)``. Returns whether there was one.

        Its return acks, an ``Exception`` retries with its text, a cancellation releases; a handle that the delivery
        settled itself is left alone. The store sends no heartbeat: ``handle.heartbeat`` is the delivery's to call.
        """
        from ._worker import deliver_once

        return await deliver_once(self._unit, self._queue, names.local(worker_id), delivery)

    async def run_delivery(
        self,
        delivery: Callable[[JobHandle], Awaitable[object]],
        *,
        worker_id: str | None = None,
        concurrency: int = 1,
        stop: StopToken | None = None,
        grace: Seconds = 30,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep delivering as `run_once` does, woken, stopped and swept as a queue's worker is."""
        from ._worker import Worker, delivering

        worker = Worker(self, delivering(delivery), worker_id, concurrency, 0, stop, grace)
        await worker.run(task_status)
