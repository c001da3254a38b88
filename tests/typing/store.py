"""What the type checkers make of the store and its handles. Read by them, never run."""

import sqlite3
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

import anyio
import attrs
import psycopg

from alkstore_trio import (
    EventReceiver,
    Job,
    JobHandle,
    JobState,
    JoinedTx,
    LockHandle,
    Outbox,
    Queue,
    QueueStatistics,
    Schedule,
    ScheduleOptions,
    ScheduleState,
    StopToken,
    Store,
    Stream,
    StreamEvent,
    StreamStatistics,
    SyncJoinedTx,
    Tx,
    Wake,
    WakeReceiver,
    open_memory,
    open_postgres,
    open_sqlite,
    open_store,
)
from alkstore_trio.testing import LoopClock, ManualClock, drain, hold_lease, tick


@attrs.frozen
class Order:
    number: int


def order(value: Any) -> Order:
    return Order(value["number"])


async def handler(job: Job) -> None: ...


async def delivery(handle: JobHandle) -> bool:
    return await handle.ack()


async def opening() -> None:
    assert_type(open_memory(), AbstractAsyncContextManager[Store, bool | None])
    assert_type(open_memory(clock=ManualClock()), AbstractAsyncContextManager[Store, bool | None])
    assert_type(open_memory(clock=LoopClock()), AbstractAsyncContextManager[Store, bool | None])
    async with open_store("memory:") as store:
        assert_type(store, Store)
    assert_type(open_sqlite("a.db"), AbstractAsyncContextManager[Store, bool | None])
    open_sqlite(Path("a.db"), durability="normal", table_prefix="mine_", busy_timeout=timedelta(seconds=5))
    assert_type(open_postgres("postgresql:///app"), AbstractAsyncContextManager[Store, bool | None])
    open_postgres("dbname=app", schema="mine", max_connections=4, lock_timeout=timedelta(seconds=5), wakes="poll")


def joining(store: Store, connection: sqlite3.Connection) -> None:
    joined = store.join(connection)
    assert_type(joined, SyncJoinedTx)
    assert_type(joined.enqueue_tx("q", 1, delay=timedelta(seconds=1)), int)
    assert_type(joined.outbox_enqueue_tx("o", 1), int)
    assert_type(joined.publish_tx("s", 1), int)
    assert_type(joined.save_offset_tx("s", "consumer", 1), bool)
    assert_type(joined.get_job_tx("q", 1), Job | None)
    assert_type(joined.read_since_tx("s", 0, 1), list[StreamEvent])
    assert_type(joined.wake(), None)


async def joining_asynchronously(
    store: Store, sync: psycopg.Connection[Any], connection: psycopg.AsyncConnection[Any]
) -> None:
    assert_type(store.join(sync), SyncJoinedTx)
    joined = store.join(connection)
    assert_type(joined, JoinedTx)
    assert_type(await joined.enqueue_tx("q", 1, delay=timedelta(seconds=1)), int)
    assert_type(await joined.read_from_consumer_tx("s", "consumer", 1), list[StreamEvent])


async def queues(store: Store) -> None:
    queue = store.queue("q", visibility_timeout=timedelta(minutes=1), base_backoff=0.5, dead_retention=60)
    assert_type(queue, Queue)
    assert_type(await queue.enqueue({"number": 1}, delay=0.25, run_at=datetime.now(UTC), expires=5), int)
    assert_type(await queue.enqueue_many([1, "x", None]), list[int])
    handle = await queue.claim("w")
    assert_type(handle, JobHandle | None)
    assert_type(await queue.claim_batch("w", 5), list[JobHandle])
    assert_type(await queue.ack_batch(handle for handle in await queue.claim_batch("w", 5)), int)
    assert_type(await queue.get_job(1), Job | None)
    assert_type(await queue.jobs(JobState.DEAD, limit=5, after=2), list[Job])
    assert_type(await queue.statistics(), QueueStatistics)
    assert_type(await queue.next_ready_at(), float | None)
    assert_type(await queue.sweep_expired(), int)
    assert_type(await queue.revive({1, 2}), int)
    assert_type(await queue.delete(range(3)), int)
    assert_type(await drain(queue, handler), int)


async def claims(handle: JobHandle) -> None:
    assert_type(handle.job, Job)
    assert_type(await handle.ack(), bool)
    assert_type(await handle.fail("x"), bool)
    assert_type(await handle.retry("x", timedelta(seconds=1)), bool)
    assert_type(await handle.release(), bool)
    assert_type(await handle.heartbeat(5), bool)


def values(job: Job, event: StreamEvent) -> None:
    assert_type(job.payload_as(order), Order)
    assert_type(event.payload_as(order), Order)
    assert_type(job.payload_as(str), str)
    assert_type(job.state, JobState)
    assert_type(job.expires_at, float | None)
    assert_type(event.key, str | None)


async def streams(store: Store) -> None:
    stream = store.stream("s")
    assert_type(stream, Stream)
    assert_type(await stream.publish([1]), int)
    assert_type(await stream.publish_with_key("k", 1), int)
    assert_type(await stream.publish_many(iter("xyz")), list[int])
    assert_type(await stream.read_since(0, 10), list[StreamEvent])
    assert_type(await stream.read_from_consumer("c", 10), list[StreamEvent])
    assert_type(await stream.get_offset("c"), int)
    assert_type(await stream.save_offset("c", 5), bool)
    assert_type(await stream.trim_to(5), int)
    assert_type(await stream.statistics(), StreamStatistics)
    assert_type((await stream.statistics()).consumers, Mapping[str, int])
    async with stream.subscribe("c", prefetch=5) as events:
        assert_type(events, EventReceiver)
        assert_type(await events.receive(), StreamEvent)
        assert_type(events.receive_nowait(), StreamEvent)
        async for event in events:
            assert_type(event, StreamEvent)
            assert_type(await events.save_offset(event.offset), bool)


async def wakes(store: Store) -> None:
    await store.notify("c")
    await store.notify("c", {"any": "thing"})
    async with store.listen("c") as received:
        assert_type(received, WakeReceiver)
        assert_type(await received.receive(), Wake)
        async for wake in received:
            assert_type(wake.channel, str)


async def locks(store: Store) -> None:
    lock = await store.try_lock("l", "owner", 5)
    assert_type(lock, LockHandle | None)
    if lock is not None:
        assert_type(lock.token, int)
        async with lock as held:
            assert_type(held, LockHandle)
            assert_type(await held.renew(5), bool)
            assert_type(await held.release(), bool)
    async with store.hold_lock("l", timedelta(seconds=5), owner="me", wait=False) as held:
        assert_type(held, LockHandle)
    assert_type(await hold_lease(store, "me", 5), LockHandle | None)


async def schedules(store: Store) -> None:
    schedule = await store.schedule("x", "@every 5s", "q", None, priority=1, expires=timedelta(hours=1))
    assert_type(schedule, Schedule)
    assert_type(schedule.opts, ScheduleOptions)
    assert_type(await store.schedules(), list[ScheduleState])
    assert_type(await store.unschedule("x"), bool)
    assert_type(await tick(store), int)


async def outboxes(store: Store) -> None:
    outbox = store.outbox("o")
    assert_type(outbox, Outbox)
    assert_type(await outbox.enqueue(1, max_attempts=2), int)
    assert_type(await outbox.run_once("w", delivery), bool)
    assert_type(await outbox.jobs(), list[Job])


async def transactions(store: Store) -> None:
    async with store.begin_tx() as tx:
        assert_type(tx, Tx)
        assert_type(await tx.enqueue_tx("q", 1, delay=1), int)
        assert_type(await tx.outbox_enqueue_tx("o", 1), int)
        assert_type(await tx.publish_tx("s", 1), int)
        assert_type(await tx.publish_with_key_tx("s", "k", 1), int)
        assert_type(await tx.save_offset_tx("s", "c", 1), bool)
        assert_type(await tx.get_job_tx("q", 1), Job | None)
        assert_type(await tx.get_offset_tx("s", "c"), int)
        assert_type(await tx.read_since_tx("s", 0, 1), list[StreamEvent])
        assert_type(await tx.read_from_consumer_tx("s", "c", 1), list[StreamEvent])
        assert_type(await tx.execute("select ?", [1]), list[tuple[Any, ...]])
        await tx.commit()
    async with store.transaction() as tx:
        assert_type(tx, Tx)

    async def effect(tx: Tx) -> Order:
        return Order(await tx.enqueue_tx("q", 1))

    assert_type(await store.with_tx(effect, attempts=3), Order)
    assert_type(await store.with_tx(lambda tx: tx.publish_tx("s", 1)), int)


async def background(store: Store) -> None:
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        tasks.start_soon(store.run_schedules)
        await tasks.start(lambda *, task_status: store.run_schedules(standby=True, task_status=task_status))
        await tasks.start(store.queue("q").run_worker, handler)
        await tasks.start(store.outbox("o").run_delivery, delivery)
    await store.queue("q").run_worker(handler, concurrency=4, prefetch=2, stop=stop, grace=timedelta(seconds=5))
    with stop.scope() as scope:
        assert_type(scope, anyio.CancelScope)
        await stop.wait()
    assert_type(stop.cancel_called, bool)
