"""Jobs through other queues on Postgres. It runs in an interpreter that has them, which need not have this library.

    python -m tests.bench.postgres_peers pgqueuer DSN 20000

installs that queue in an empty database, fills it in bulk, and prints the seconds that each job took it from the first
claim until the last handler had run, with eight at a time and handlers that do nothing: by its own worker, or where it
has none, by eight tasks that take and delete.

    pip install pgqueuer asyncpg pgmq procrastinate chancy "psycopg[binary]"
"""

import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import anyio

from .harness import PAYLOAD, on_loop

__all__ = ["PEERS"]

_TASKS = 8
_BULK = 1_000
_BATCH = 50


class _Countdown:
    """Jobs that are still to be handled."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs
        self._started = 0.0
        self.per_job = 0.0
        self._jobs = jobs
        self.ended = anyio.Event()

    def start(self) -> None:
        self._started = time.perf_counter()

    def one(self) -> None:
        self._left -= 1
        if not self._left:
            self.per_job = (time.perf_counter() - self._started) / self._jobs
            self.ended.set()


def _bulks(jobs: int) -> Iterator[int]:
    for first in range(0, jobs, _BULK):
        yield min(_BULK, jobs - first)


async def pgqueuer(dsn: str, jobs: int) -> float:
    asyncpg, package = import_module("asyncpg"), import_module("pgqueuer")
    pool = await asyncpg.create_pool(dsn, min_size=_TASKS, max_size=_TASKS + 2)
    manager = package.QueueManager(import_module("pgqueuer.queries").Queries.from_asyncpg_pool(pool))
    await manager.queries.install()
    body = json.dumps(PAYLOAD).encode()
    for n in _bulks(jobs):
        await manager.queries.enqueue(["bench"] * n, [body] * n, [0] * n)
    countdown = _Countdown(jobs)

    async def handle(job: Any) -> None:
        countdown.one()

    manager.entrypoint("bench", accepts_context=False)(handle)
    countdown.start()
    drain = import_module("pgqueuer.types").QueueExecutionMode.drain
    await manager.run(batch_size=_TASKS, max_concurrent_tasks=2 * _TASKS, mode=drain)  # the least that it takes
    await pool.close()
    return countdown.per_job


async def pgmq(dsn: str, jobs: int, batch: int = 1) -> float:
    asyncpg, package = import_module("asyncpg"), import_module("pgmq")
    pool = await asyncpg.create_pool(dsn, min_size=_TASKS, max_size=_TASKS)
    await pool.execute(package.get_embedded_install_sql())
    queue = package.AsyncPGMQueue(pool=pool, init_extension=False)
    await queue.create_queue("bench")
    for n in _bulks(jobs):
        await queue.send_batch("bench", [PAYLOAD] * n)

    async def work_one() -> None:
        while (message := await queue.read("bench", vt=300)) is not None:
            await queue.delete("bench", message.msg_id)

    async def work_batch() -> None:
        while messages := await queue.read_batch("bench", vt=300, batch_size=batch):
            await queue.delete_batch("bench", [message.msg_id for message in messages])

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(_TASKS):
            tasks.start_soon(work_one if batch == 1 else work_batch)
    taken = time.perf_counter() - started
    await pool.close()
    return taken / jobs


async def procrastinate(dsn: str, jobs: int) -> float:
    package = import_module("procrastinate")
    app = package.App(connector=package.PsycopgConnector(conninfo=dsn, min_size=_TASKS, max_size=_TASKS + 2))
    countdown = _Countdown(jobs)

    async def handle(payload: object) -> None:
        countdown.one()

    task = app.task(name="bench", queue="bench")(handle)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for n in _bulks(jobs):
            await task.batch_defer_async(*[{"payload": PAYLOAD}] * n)
        countdown.start()
        await app.run_worker_async(
            concurrency=_TASKS, wait=False, delete_jobs="always", listen_notify=False, install_signal_handlers=False
        )
    return countdown.per_job


_chancy: list[_Countdown] = []  # it finds its handlers by their names


async def chancy_handle(*, payload: object) -> None:
    _chancy[0].one()


async def chancy(dsn: str, jobs: int, *, silent: bool = False) -> float:
    package = import_module("chancy")
    countdown = _Countdown(jobs)
    _chancy.append(countdown)
    queue = package.Queue("bench", _TASKS, executor=package.Chancy.Executor.Async, eager_polling=True)
    job = package.Job.from_func(chancy_handle, queue="bench", kwargs={"payload": PAYLOAD})
    log = {"log": logging.getLogger("bench")} if silent else {}  # its own writes a line for each job
    async with package.Chancy(dsn, **log) as app:
        await app.migrate()
        for n in _bulks(jobs):
            async for _ in app.push_many([job] * n):
                pass
        await app.declare(queue)
        async with package.Worker(app, register_signal_handlers=False):
            countdown.start()
            await countdown.ended.wait()
    return countdown.per_job


PEERS: dict[str, Callable[[str, int], Awaitable[float]]] = {
    "pgqueuer": pgqueuer,
    "pgmq": pgmq,
    "pgmq in batches": partial(pgmq, batch=_BATCH),
    "procrastinate": procrastinate,
    "chancy": chancy,
    "chancy, writing no log": partial(chancy, silent=True),
}


if __name__ == "__main__":
    _, name, dsn, jobs = sys.argv
    print(on_loop("asyncio", partial(PEERS[name], dsn, int(jobs))))
