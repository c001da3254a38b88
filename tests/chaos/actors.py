"""What one process of a run does, or on memory one of the tasks that stand for one: a bit of everything, for good.

Each payload is unique in the run, so that the history can tell what became of it. A store that fails is asked again:
what matters is what stands in the end. Nothing here judges.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import anyio
import attrs

from alkstore_trio import DatabaseError, Discard, Job, JobHandle, Snooze, Store, open_postgres, open_sqlite
from alkstore_trio._ops import ReadClock

from .history import Recorder
from .world import World

__all__ = ["INTERVALS", "LEASE", "TASKS", "Actor", "prepare"]

LEASE = 1.0  # seconds
_PAUSE = 0.02  # seconds between two verbs of a task, on average
_AGAIN = 0.05  # seconds before what has failed is tried again
_FOREVER = 1_000_000  # attempts

INTERVALS = {"often": 1, "seldom": 3}  # seconds, by schedule


async def prepare(store: Store) -> dict[str, float]:
    """Register the schedules before anybody runs them; their first boundaries."""
    for name, seconds in INTERVALS.items():
        await store.schedule(name, f"@every {seconds}s", "fired", name, max_attempts=_FOREVER)
    return {state.schedule.name: state.next_at for state in await store.schedules()}


@attrs.define(eq=False)
class Actor:
    """It acts through one store; ``name`` is unique in the run, and ``stable`` that of whoever takes over after it."""

    store: Store
    record: Recorder
    world: World
    name: str
    stable: str
    chance: Random
    _numbers: "count[int]" = attrs.field(factory=count)

    async def act(self) -> None:
        """Do everything at once."""
        async with anyio.create_task_group() as tasks:
            for task, verb in TASKS.items():
                tasks.start_soon(self._on_and_on, task, verb)

    async def _on_and_on(self, task: str, verb: Callable[["Actor"], Awaitable[object]]) -> None:
        while True:
            try:
                await verb(self)
                await anyio.sleep(self.chance.expovariate(1 / _PAUSE))
            except DatabaseError as error:
                self.record.failure(task, error)
                await anyio.sleep(_AGAIN)

    def unique(self) -> str:
        return f"{self.name}.{next(self._numbers)}"

    async def now(self) -> float:
        """The engine's clock."""
        return await self.store._engine.do(ReadClock())

    # Queues

    def claimed(self, job: Job) -> dict[str, Any]:
        """What a claim has shown of a job, and how often the clock had been set, unless it was since that reading."""
        assert job.claim_expires_at is not None
        start = job.claim_expires_at - job.visibility_timeout
        return {
            "queue": job.queue,
            "id": job.id,
            "uid": job.payload,
            "start": start,
            "end": job.claim_expires_at,
            "created": job.created_at,
            "steps": self.world.steps if self.world.may_have_read(start) else None,
        }

    async def enqueue(self) -> None:
        uids = [self.unique() for _ in range(self.chance.choice([1, 1, 1, 5]))]
        name = self.chance.choice(["jobs", "jobs", "jobs", "by hand"])
        queue = self.store.queue(name, visibility_timeout=LEASE, max_attempts=_FOREVER, base_backoff=0.1)
        delay = self.chance.choice([None, None, 0.3])
        with self.record.call("enqueue", "enqueue", queue=name, uids=uids) as call:
            call.answer = await queue.enqueue_many(uids, priority=self.chance.randint(0, 2), delay=delay)

    async def work_by_hand(self) -> None:
        """On a queue of its own there is nobody quicker to take what has lapsed."""
        name = self.chance.choice(["jobs", "by hand"])
        queue = self.store.queue(name)
        with self.record.call("by hand", "claim", queue=name) as call:
            handles = await queue.claim_batch(self.name, self.chance.randint(1, 4))
            call.answer = [self.claimed(handle.job) for handle in handles]
        together: list[JobHandle] = []
        for handle in handles:
            choice = self.chance.random()
            if choice < 0.1:
                await anyio.sleep(self.chance.uniform(0.5, 1.5) * LEASE)  # so that some, and what waits, lapse
            elif choice < 0.3:
                await self._heartbeat(handle)
            if self.chance.random() < 0.3:
                together.append(handle)
            else:
                await self._settle(handle, self.chance.choice(["ack"] * 7 + ["retry", "release", "fail"]))
        if together:
            claims = [self.claimed(handle.job) for handle in together]
            with self.record.call("by hand", "ack_batch", claims=claims) as call:
                call.answer = await queue.ack_batch(together)

    async def _heartbeat(self, handle: JobHandle) -> None:
        steps, now = self.world.steps, await self.now()
        with self.record.call("by hand", "heartbeat", claim=self.claimed(handle.job), steps=steps, now=now) as call:
            call.answer = await handle.heartbeat() and steps == self.world.steps

    async def _settle(self, handle: JobHandle, verb: str) -> None:
        text = ["on purpose"] if verb in ("retry", "fail") else []
        with self.record.call("by hand", verb, claim=self.claimed(handle.job)) as call:
            call.answer = await getattr(handle, verb)(*text)

    async def work(self) -> None:
        await self._worker("worker", "jobs", concurrency=10)  # faster than all enqueue, so that nothing waits for good

    async def work_on_fires(self) -> None:
        await self._worker("worker of fires", "fired", concurrency=1)

    async def _worker(self, task: str, queue: str, concurrency: int) -> None:
        await self.store.queue(queue).run_worker(partial(self._handle, task), concurrency=concurrency)

    async def _handle(self, task: str, job: Job) -> None:
        choice = self.chance.random()
        with self.record.call(task, "handle", claim=self.claimed(job)):
            await anyio.sleep(self.chance.expovariate(1 / _PAUSE))
            if choice < 0.05:
                raise ValueError("on purpose")
            if choice < 0.08:
                raise Snooze(0.1)
            if choice < 0.1:
                raise Discard("on purpose")

    async def deliver(self) -> None:
        async def delivery(handle: JobHandle) -> None:
            await self._handle("delivery", handle.job)

        await self.store.outbox("letters").run_delivery(delivery, concurrency=2)

    # Streams and transactions

    async def publish(self) -> None:
        uids = [self.unique() for _ in range(self.chance.choice([1, 1, 3]))]
        with self.record.call("publisher", "publish", uids=uids) as call:
            call.answer = await self.store.stream("events").publish_many(uids)

    async def transact(self) -> None:
        """All of it or nothing; now and then it is discarded on purpose."""
        uid = self.unique()
        commits = self.chance.random() < 0.8
        with self.record.call("transaction", "transact" if commits else "discard", uid=uid) as call:
            async with self.store.begin_tx() as tx:
                job = await tx.enqueue_tx("jobs", uid, max_attempts=_FOREVER)
                letter = await tx.outbox_enqueue_tx("letters", uid, max_attempts=_FOREVER)
                offset = await tx.publish_tx("events", uid)
                if self.chance.random() < 0.1:
                    await anyio.sleep(_PAUSE)
                if commits:
                    await tx.commit()
            call.answer = {"job": job, "letter": letter, "offset": offset}

    async def copy(self) -> None:
        """Work on each event exactly once: its effect and the offset are one transaction.

        A commit of one who was killed may land late, after these have been read, but before an offset is saved.
        """
        consumer = f"copier {self.stable}"
        events = await self.store.stream("events").read_from_consumer(consumer, 5)
        if not events:
            return
        copied: list[int] = []
        with self.record.call("copier", "copy", consumer=consumer) as call:
            async with self.store.transaction() as tx:
                for event in events:
                    if await tx.save_offset_tx("events", consumer, event.offset):
                        await tx.enqueue_tx(consumer, event.offset)
                        copied.append(event.offset)
            call.answer = copied

    async def subscribe(self) -> None:
        stream = self.store.stream("events")
        consumer = f"subscriber {self.stable}"
        subscription = self.unique()
        self.record.note("subscriber", "subscribed", {"subscription": subscription, "consumer": consumer})
        async with stream.subscribe(consumer, prefetch=self.chance.choice([1, 10, 100])) as events:
            for _ in range(self.chance.randint(20, 200)):
                event = await events.receive()
                self.record.note("subscriber", "received", {"subscription": subscription, "offset": event.offset})
                if self.chance.random() < 0.2:
                    with self.record.call("subscriber", "save", consumer=consumer, offset=event.offset) as call:
                        call.answer = await events.save_offset(event.offset)

    # Locks and schedules

    async def lock(self) -> None:
        owner = self.unique()
        steps, now = self.world.steps, await self.now()
        with self.record.call("locker", "try_lock", owner=owner, steps=steps, now=now) as call:
            lock = await self.store.try_lock("lock", owner, LEASE)
            call.answer = None if lock is None else lock.token
        if lock is None:
            return
        await self._read_clock(lock.token)
        for _ in range(self.chance.choice([0, 1, 3])):
            await anyio.sleep(self.chance.uniform(0.1, 0.6) * LEASE)
            steps, now = self.world.steps, await self.now()
            with self.record.call("locker", "renew", token=lock.token, steps=steps, now=now) as call:
                call.answer = await lock.renew(LEASE)
            await self._read_clock(lock.token)
        if self.chance.random() < 0.7:
            with self.record.call("locker", "unlock", token=lock.token) as call:
                call.answer = await lock.release()

    async def _read_clock(self, token: int) -> None:
        now, steps = await self.now(), self.world.steps
        self.record.note("locker", "read_clock", {"token": token, "now": now, "steps": steps})

    async def lead(self) -> None:
        await self.store.run_schedules(standby=True)


TASKS: dict[str, Callable[[Actor], Awaitable[object]]] = {
    "enqueue": Actor.enqueue,
    "by hand": Actor.work_by_hand,
    "worker": Actor.work,
    "worker of fires": Actor.work_on_fires,
    "delivery": Actor.deliver,
    "publisher": Actor.publish,
    "transaction": Actor.transact,
    "copier": Actor.copy,
    "subscriber": Actor.subscribe,
    "locker": Actor.lock,
    "runner": Actor.lead,
}


# A process of its own, for as long as its standard input is open:
# python -m tests.chaos.actors ENGINE WHERE FOLDER NAME STABLE SEED LOOP


def _end_with_the_run() -> None:
    sys.stdin.read()
    os._exit(0)


def _leaves(group: BaseExceptionGroup[DatabaseError]) -> Iterator[DatabaseError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _process(engine: str, where: str, folder: Path, name: str, stable: str, seed: str) -> None:
    world = World(folder / "world", decides=engine == "sqlite")
    world.meddle()
    record = Recorder(name, sys.stdout.fileno())
    while True:
        try:
            async with (
                open_sqlite(where, clock=world.clock)
                if engine == "sqlite"
                else open_postgres(where, schema="chaos", max_connections=5)
            ) as store:
                await Actor(store, record, world, name, stable, Random(seed)).act()
        except* DatabaseError as group:  # it could not be opened
            for error in _leaves(group):
                record.failure("opening", error)
        await anyio.sleep(_AGAIN)


if __name__ == "__main__":
    engine, where, folder, name, stable, seed, loop = sys.argv[1:]
    Thread(target=_end_with_the_run, daemon=True).start()
    anyio.run(_process, engine, where, Path(folder), name, stable, seed, backend=loop)
