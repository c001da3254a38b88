"""A job through this store and through others that keep their jobs in memory: enqueue, take, finish, one at a time.

None of them is a requirement: install by hand what is to be compared, in an environment of its own; what is missing is
skipped. Each is driven at the level that its own workers use, with the verbs that come nearest. They promise different
things: asyncmq and APScheduler keep the object itself and encode nothing, huey's memory storage is synchronous and has
no leases, taskiq runs the task where it is kicked.

    pip install asyncmq pgqueuer taskiq huey "apscheduler>=4.0.0a1"
"""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from uuid import uuid4

from .harness import PAYLOAD, Samples, arguments, clock, on_loop, turns
from .jobs import single


async def asyncmq(jobs: int) -> float:
    backend = import_module("asyncmq.backends.memory").InMemoryBackend()
    started = clock()
    for number in range(jobs):
        await backend.enqueue("bench", {"id": str(number), "task": "task", "args": [PAYLOAD], "kwargs": {}})
        job = await backend.dequeue("bench")
        await backend.ack("bench", job["id"])
    return (clock() - started) / jobs


async def pgqueuer(jobs: int) -> float:
    queries = import_module("pgqueuer.adapters.inmemory")
    limits = import_module("pgqueuer.ports.repository").EntrypointExecutionParameter(0)
    store = queries.InMemoryQueries(queries.InMemoryDriver())
    entrypoints, manager, heartbeat = {"bench": limits}, uuid4(), timedelta(seconds=30)
    started = clock()
    for _ in range(jobs):
        await store.enqueue("bench", json.dumps(PAYLOAD).encode())
        (job,) = await store.dequeue(1, entrypoints, manager, None, heartbeat)
        json.loads(job.payload)
        await store.log_jobs([(job, "successful", None)])
    return (clock() - started) / jobs


async def taskiq(jobs: int) -> float:
    broker = import_module("taskiq").InMemoryBroker(await_inplace=True)

    async def task(payload: object) -> None:
        pass

    kicked = broker.task(task_name="bench")(task)
    await broker.startup()
    started = clock()
    for _ in range(jobs):
        await kicked.kiq(PAYLOAD)
    taken = (clock() - started) / jobs
    await broker.shutdown()
    return taken


async def apscheduler(jobs: int) -> float:
    package = import_module("apscheduler")
    store = import_module("apscheduler.datastores.memory").MemoryDataStore()
    async with package.AsyncScheduler(data_store=store):
        await store.add_task(package.Task(id="bench", func="json:dumps", job_executor="async"))
        lease = timedelta(seconds=30)
        started = clock()
        for _ in range(jobs):
            await store.add_job(package.Job(task_id="bench", args=(PAYLOAD,), executor="async"))
            (job,) = await store.acquire_jobs("worker", lease, 1)
            result = package.JobResult.from_job(job, package.JobOutcome.success)
            await store.release_job("worker", job, result)
        return (clock() - started) / jobs


async def huey_storage(jobs: int) -> float:
    storage = import_module("huey.storage").MemoryStorage("bench")
    started = clock()
    for _ in range(jobs):
        storage.enqueue(json.dumps(PAYLOAD).encode())
        json.loads(storage.dequeue())
    return (clock() - started) / jobs


async def huey(jobs: int) -> float:
    queue = import_module("huey").MemoryHuey("bench", results=False)

    def task(payload: object) -> None:
        pass

    enqueued = queue.task()(task)
    started = clock()
    for _ in range(jobs):
        enqueued(PAYLOAD)
        queue.execute(queue.dequeue())
    return (clock() - started) / jobs


PEERS: dict[str, tuple[str, Callable[[int], Awaitable[float]]]] = {
    "asyncmq on trio": ("trio", asyncmq),
    "asyncmq on asyncio": ("asyncio", asyncmq),
    "pgqueuer in memory": ("asyncio", pgqueuer),
    "taskiq in memory": ("asyncio", taskiq),
    "APScheduler 4 in memory": ("asyncio", apscheduler),
    "huey's memory storage": ("asyncio", huey_storage),
    "huey in memory": ("asyncio", huey),
}


def main(*, quick: bool) -> None:
    jobs, rounds = (20, 1) if quick else (1_000, 21)
    contenders: dict[str, tuple[str, Callable[[int], Awaitable[float]]]] = {}
    for loop in ("trio", "asyncio"):
        contenders[f"alkstore on {loop}"] = (loop, partial(single, read=False))
        contenders[f"alkstore on {loop}, payload read"] = (loop, partial(single, read=True))
    samples = Samples("enqueue, take, finish; per job")
    for name, (loop, work) in PEERS.items():
        try:
            on_loop(loop, partial(work, 1))
        except ImportError as error:
            print(f"  {name:56} skipped: {error}")
        else:
            contenders[name] = (loop, work)
    for name in turns(contenders, rounds):
        loop, work = contenders[name]
        samples.add(name, on_loop(loop, partial(work, jobs)))
    samples.times()
    for name, (loop, _) in contenders.items():
        if name in PEERS:
            samples.ratio(name, f"alkstore on {loop}", "" if "huey" in name else "at least 1.5")
            samples.ratio(name, f"alkstore on {loop}, payload read")


if __name__ == "__main__":
    main(quick=arguments(__doc__))
