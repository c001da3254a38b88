"""A random walk over the memory engine, beside a model that takes the contract at its word and looks at every row.

One clock, stepped both ways, drives both. Every answer is compared, and every few steps all rows, events and wakes.
Longer walks by hand, from a seed on until one fails: ``python -m tests.engines.test_memory_walk 1000``.
"""

import json
import math
import sys
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from random import Random
from typing import Any

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from alkstore_trio import (
    Job,
    JobHandle,
    JobState,
    LockHandle,
    Queue,
    QueueStatistics,
    Schedule,
    ScheduleOptions,
    ScheduleState,
    Store,
    StreamEvent,
    StreamStatistics,
    Tx,
    WakeReceiver,
    open_memory,
)
from alkstore_trio.testing import ManualClock, tick

PENDING, PROCESSING, DEAD = JobState.PENDING, JobState.PROCESSING, JobState.DEAD
START = 1_000_000.0
ALL = 10**9

# ------------------------------------------------------------------------------------------------------- the model


@attrs.define
class Row:
    """The fields of a job, and its latest claim's token."""

    id: int
    queue: str
    body: str
    state: JobState
    priority: int
    run_at: float
    expires_at: float | None
    attempts: int
    max_attempts: int
    visibility_timeout: float
    base_backoff: float
    dead_retention: float | None
    worker_id: str | None
    claim_expires_at: float | None
    created_at: float
    last_error: str | None
    died_at: float | None
    token: int = 0

    def job(self) -> Job:
        fields = attrs.asdict(self)
        del fields["token"]
        return Job(**fields)

    def lapsed(self, now: float) -> bool:
        return self.state is PROCESSING and self.claim_expires_at is not None and self.claim_expires_at < now

    def due(self, now: float) -> bool:
        """Unexpired, and either pending with its time come or lapsed."""
        unexpired = self.expires_at is None or self.expires_at > now
        return unexpired and ((self.state is PENDING and self.run_at <= now) or self.lapsed(now))

    def claimable(self, now: float) -> bool:
        return self.attempts < self.max_attempts and self.due(now)

    def die(self, now: float, text: str) -> None:
        self.state, self.last_error, self.died_at = DEAD, text, now

    def go_back(self, run_at: float) -> None:
        self.state, self.worker_id, self.claim_expires_at, self.run_at = PENDING, None, None, run_at


@attrs.define(eq=False)
class Claim:
    """What a handle holds."""

    row: Row
    token: int
    settled: bool = False


@attrs.define
class Stream:
    """Committed events, ascending, and saved offsets."""

    events: list[StreamEvent] = attrs.field(factory=list)
    offsets: dict[str, int] = attrs.field(factory=dict)
    last: int = 0


@attrs.define(eq=False)
class Staging:
    """What an open transaction has staged."""

    rows: list[Row] = attrs.field(factory=list)
    events: list[StreamEvent] = attrs.field(factory=list)
    saves: list[tuple[str, str, int]] = attrs.field(factory=list)
    notifies: int = 0


@attrs.define
class Hold:
    """A lock's row."""

    owner: str
    serial: int
    expires_at: float


@attrs.define
class Registered:
    """A schedule's row."""

    schedule: Schedule
    interval: int
    body: str
    next_at: float


class Model:
    """The contract, word for word."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.rows: dict[int, Row] = {}
        self.ids = count(1)
        self.streams: dict[str, Stream] = {}
        self.open: list[Staging] = []
        self.locks: dict[str, Hold] = {}
        self.holds = count(1)
        self.schedules: dict[str, Registered] = {}
        self.wakes = 0

    # Queues

    def of(self, queue: str) -> list[Row]:
        return sorted((row for row in self.rows.values() if row.queue == queue), key=lambda row: row.id)

    def new_row(
        self,
        queue: str,
        payload: object,
        stamps: tuple[float, int, float, float | None],
        *,
        delay: float | None = None,
        run_at: float | None = None,
        priority: int = 0,
        expires: float | None = None,
        max_attempts: int | None = None,
    ) -> Row:
        now = self.clock()
        return Row(
            id=next(self.ids),
            queue=queue,
            body=json.dumps(payload),
            state=PENDING,
            priority=priority,
            run_at=now + delay if delay is not None else now if run_at is None else run_at,
            expires_at=None if expires is None else now + expires,
            attempts=0,
            max_attempts=stamps[1] if max_attempts is None else max_attempts,
            visibility_timeout=stamps[0],
            base_backoff=stamps[2],
            dead_retention=stamps[3],
            worker_id=None,
            claim_expires_at=None,
            created_at=now,
            last_error=None,
            died_at=None,
        )

    def enqueue(self, queue: str, payload: object, stamps: Any, **options: Any) -> int:
        row = self.new_row(queue, payload, stamps, **options)
        self.rows[row.id] = row
        return row.id

    def claim(self, queue: str, worker_id: str, n: int) -> list[Claim]:
        now = self.clock()
        if n <= 0:
            return []
        for row in self.of(queue):
            if row.attempts >= row.max_attempts and row.due(now):
                row.die(now, "max attempts exceeded")
        ready = [row for row in self.of(queue) if row.claimable(now)]
        ready.sort(key=lambda row: (-row.priority, row.run_at, row.id))
        for row in ready[:n]:
            row.state, row.worker_id, row.claim_expires_at = PROCESSING, worker_id, now + row.visibility_timeout
            row.attempts += 1
            row.token += 1
        return [Claim(row, row.token) for row in ready[:n]]

    def valid(self, claim: Claim) -> bool:
        row = claim.row
        return (
            self.rows.get(row.id) is row
            and row.state is PROCESSING
            and row.token == claim.token
            and row.claim_expires_at is not None
            and row.claim_expires_at >= self.clock()
        )

    def settles(self, claim: Claim) -> bool:
        """Whether a settling lands; either way the handle is settled."""
        lands = not claim.settled and self.valid(claim)
        claim.settled = True
        return lands

    def heartbeat(self, claim: Claim, extend: float | None) -> bool:
        if claim.settled or not self.valid(claim):
            return False
        window = claim.row.visibility_timeout if extend is None else extend
        claim.row.claim_expires_at = self.clock() + window
        return True

    def sweep(self, queue: str) -> int:
        now, swept = self.clock(), 0
        for row in self.of(queue):
            if row.died_at is not None and row.dead_retention is not None and row.died_at + row.dead_retention <= now:
                del self.rows[row.id]
                swept += 1
        for row in self.of(queue):
            expired = row.expires_at is not None and row.expires_at <= now
            if expired and (row.state is PENDING or row.lapsed(now)):
                row.die(now, "expired")
                swept += 1
        return swept

    def revive(self, queue: str, ids: Iterable[int]) -> int:
        dead = [row for row in self.of(queue) if row.id in ids and row.state is DEAD]
        for row in dead:
            row.go_back(self.clock())
            row.attempts, row.expires_at, row.last_error, row.died_at = 0, None, None, None
        return len(dead)

    def delete(self, queue: str, ids: Iterable[int]) -> int:
        now = self.clock()
        free = [row for row in self.of(queue) if row.id in ids and (row.state is not PROCESSING or row.lapsed(now))]
        for row in free:
            del self.rows[row.id]
        return len(free)

    def statistics(self, queue: str) -> QueueStatistics:
        rows = self.of(queue)
        pending, processing, dead = (sum(row.state is state for row in rows) for state in (PENDING, PROCESSING, DEAD))
        return QueueStatistics(pending, processing, dead, sum(row.claimable(self.clock()) for row in rows))

    def first_claim_at(self, queue: str) -> float | None:
        """The first instant, from now on, at which a claim finds a row."""
        now = self.clock()
        starts: list[float] = []
        for row in self.of(queue):
            if row.state is PENDING:
                start = max(row.run_at, now)
            elif row.state is PROCESSING and row.claim_expires_at is not None:
                start = max(math.nextafter(row.claim_expires_at, math.inf), now)
            else:
                continue
            if row.claimable(start):
                starts.append(start)
        return min(starts, default=None)

    # Streams

    def stream(self, name: str) -> Stream:
        return self.streams.setdefault(name, Stream())

    def new_event(self, name: str, key: str | None, payload: object) -> StreamEvent:
        stream = self.stream(name)
        stream.last += 1
        return StreamEvent(stream.last, name, key, json.dumps(payload), self.clock())

    def append(self, event: StreamEvent) -> None:
        insort(self.stream(event.stream).events, event, key=lambda known: known.offset)

    def visible(self, name: str, reader: Staging | None = None) -> list[StreamEvent]:
        """Committed events below whatever another transaction may still commit."""
        staged = [e.offset for tx in self.open if tx is not reader for e in tx.events if e.stream == name]
        return [event for event in self.stream(name).events if event.offset < min(staged, default=math.inf)]

    def read(self, name: str, offset: int, limit: int, reader: Staging | None = None) -> list[StreamEvent]:
        own = [] if reader is None else [event for event in reader.events if event.stream == name]
        seen = sorted([*self.visible(name, reader), *own], key=lambda event: event.offset)
        return [event for event in seen if event.offset > offset][: max(limit, 0)]

    def offset(self, name: str, consumer: str, reader: Staging | None = None) -> int:
        own = [] if reader is None else [save[2] for save in reader.saves if save[:2] == (name, consumer)]
        return max([0, self.stream(name).offsets.get(consumer, 0), *own])

    def save_offset(self, name: str, consumer: str, offset: int) -> bool:
        advances = offset > self.offset(name, consumer)
        if advances:
            self.stream(name).offsets[consumer] = offset
        return advances

    def trim(self, name: str, horizon: int) -> int:
        gone = [event for event in self.visible(name) if event.offset <= horizon]
        for event in gone:
            self.stream(name).events.remove(event)
        return len(gone)

    def stream_statistics(self, name: str) -> StreamStatistics:
        offsets = [event.offset for event in self.visible(name)]
        return StreamStatistics(min(offsets, default=None), max(offsets, default=None), self.stream(name).offsets)

    # Transactions

    def commit(self, tx: Staging) -> None:
        self.open.remove(tx)
        self.rows.update((row.id, row) for row in tx.rows)
        for event in tx.events:
            self.append(event)
        for save in tx.saves:
            self.save_offset(*save)
        self.wakes += tx.notifies

    # Locks

    def try_lock(self, name: str, owner: str, ttl: float) -> int | None:
        hold = self.locks.get(name)
        if hold is not None and hold.expires_at > self.clock():
            return hold.serial if hold.owner == owner else None
        self.locks[name] = Hold(owner, next(self.holds), self.clock() + ttl)
        return self.locks[name].serial

    def renew(self, name: str, serial: int, ttl: float) -> bool:
        hold = self.locks.get(name)
        if hold is None or hold.serial != serial or hold.expires_at <= self.clock():
            return False
        hold.expires_at = self.clock() + ttl
        return True

    def unlock(self, name: str, serial: int) -> bool:
        hold = self.locks.get(name)
        if hold is None or hold.serial != serial:
            return False
        del self.locks[name]
        return True

    # Scheduler

    def tick(self) -> int:
        now, fires = self.clock(), 0
        for row in sorted(self.schedules.values(), key=lambda row: (row.next_at, row.schedule.name)):
            boundaries = 0
            while row.next_at <= now:
                row.next_at += row.interval
                boundaries += 1
            for _ in range(min(boundaries, 64)):
                options = attrs.asdict(row.schedule.opts)
                self.enqueue(row.schedule.queue, json.loads(row.body), (300.0, 3, 5.0, None), **options)
                fires += 1
        return fires

    def instants(self) -> list[float]:
        """Where something changes by time alone."""
        found = {hold.expires_at for hold in self.locks.values()} | {s.next_at for s in self.schedules.values()}
        for row in self.rows.values():
            found |= {at for at in (row.run_at, row.expires_at, row.claim_expires_at) if at is not None}
            if row.died_at is not None and row.dead_retention is not None:
                found.add(row.died_at + row.dead_retention)
        return sorted(found)


# -------------------------------------------------------------------------------------------------------- the walk

SECONDS = [0.25, 1.0, 2.0, 5.0, 30.0]
SHIFTS = [-30.0, -1.0, 0.0, 0.0, 0.25, 1.0, 2.0, 5.0, 30.0]
STEPS = [0.25, 0.25, 1.0, 1.0, 2.0, 5.0, 60.0, 100.0, -0.25, -1.0, -5.0, -60.0]
STAMPS = [(300.0, 3, 5.0, None), (2.0, 2, 0.0, 5.0), (0.25, 1, 1.0, 0.0), (5.0, 3, 2.0, 1.0)]
PLAIN, OUTBOX = (300.0, 3, 5.0, None), (60.0, 5, 5.0, None)

QUEUES, STREAMS, CONSUMERS, LOCKS, SCHEDULES = ["q", "r"], ["s", "t"], ["c", "d"], ["l", "m"], ["x", "y"]
BACKING = "__alkstore_outbox:o"

Stamps = tuple[float, int, float, float | None]


class Walk:
    """What a walker sees of the store, of the model, and of what both have handed out."""

    def __init__(self, seed: int, store: Store, wakes: WakeReceiver, clock: ManualClock) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.store = store
        self.wakes = wakes
        self.model = Model(clock)
        self.handles: list[tuple[JobHandle, Claim]] = []
        self.locks: list[tuple[LockHandle, int]] = []
        self.open: list[tuple[Tx, Staging]] = []

    async def go(self, steps: int) -> None:
        # A walk has habits: a favourite subject, steps that it takes often and others that it hardly takes.
        favourites = self.one(FAVOURITES)
        weights = [self.one([0.1, 1, 2, 4]) * (4 if way in favourites else 1) for way in WAYS]
        trail: deque[str] = deque(maxlen=30)
        try:
            for number, way in enumerate(self.random.choices(WAYS, weights, k=steps)):
                if self.has_what_it_takes(way):
                    trail.append(way.__name__)
                    await way(self)
                if number % 4 == 0:
                    await self.compare()
        except AssertionError as error:
            error.add_note(f"the last steps: {', '.join(trail)}")
            raise

    def has_what_it_takes(self, way: "Way") -> bool:
        if way in HANDLE:
            return bool(self.handles)
        if way in TRANSACTION or way in END:
            return bool(self.open)
        return bool(self.locks) if way in LOCK else True

    # Choices

    def one(self, choices: list[Any]) -> Any:
        return self.random.choice(choices)

    def recent(self, things: list[Any]) -> Any:
        """One of the things, rather a late one."""
        return things[-1 - min(int(self.random.expovariate(0.3)), len(things) - 1)]

    def some(self, things: Iterable[Any]) -> list[Any]:
        return [thing for thing in things if self.random.random() < 0.3]

    def payload(self) -> int:
        return self.random.randrange(10)

    def payloads(self) -> list[int]:
        return [self.payload() for _ in range(self.random.randrange(5))]

    def priority(self) -> int:
        """A few, or more than there are lanes."""
        return self.random.randint(-1, 1) if self.random.random() < 0.7 else self.random.randint(-20, 20)

    def options(self) -> dict[str, Any]:
        all_options = {
            "delay": self.one(SHIFTS),
            "run_at": self.clock() + self.one(SHIFTS),
            "priority": self.priority(),
            "expires": self.one(SHIFTS),
            "max_attempts": self.random.randint(1, 3),
        }
        return {name: option for name, option in all_options.items() if self.random.random() < 0.4}

    def extent(self) -> int:
        return self.one([-1, 0, 1, 2, 3, ALL])

    def offset(self) -> int:
        return self.one([-(2**70), -1, 0, 2**70, *range(1, 40)])

    def job_ids(self, name: str) -> list[int]:
        return [*self.some(row.id for row in self.model.of(name)), *self.some(range(-1, 40))]

    def queue(self, name: str, stamps: Stamps = PLAIN) -> Queue:
        visibility_timeout, max_attempts, base_backoff, dead_retention = stamps
        return self.store.queue(
            name,
            visibility_timeout=visibility_timeout,
            max_attempts=max_attempts,
            base_backoff=base_backoff,
            dead_retention=dead_retention,
        )

    # Time

    async def step(self) -> None:
        self.clock.advance(self.one(STEPS))

    async def step_to_where_something_changes(self) -> None:
        near = [at for at in self.model.instants() if abs(at - self.clock()) <= 30]
        if near:
            edge = self.one(near)
            self.clock.set(self.one([edge, math.nextafter(edge, math.inf), math.nextafter(edge, -math.inf)]))

    async def step_to_the_next_claim(self) -> None:
        at = await self.queue(self.one(QUEUES)).next_ready_at()
        if at is not None:
            self.clock.set(at)

    # Queues

    async def enqueue(self) -> None:
        name, payload, stamps, options = self.one(QUEUES), self.payload(), self.one(STAMPS), self.options()
        job_id = await self.queue(name, stamps).enqueue(payload, **options)
        assert job_id == self.model.enqueue(name, payload, stamps, **options)

    async def enqueue_many(self) -> None:
        name, payloads, stamps, options = self.one(QUEUES), self.payloads(), self.one(STAMPS), self.options()
        ids = await self.queue(name, stamps).enqueue_many(payloads, **options)
        assert ids == [self.model.enqueue(name, payload, stamps, **options) for payload in payloads]

    async def outbox_enqueue(self) -> None:
        payload, options = self.payload(), self.options()
        job_id = await self.store.outbox("o").enqueue(payload, **options)
        assert job_id == self.model.enqueue(BACKING, payload, OUTBOX, **options)

    async def claim(self) -> None:
        name, worker_id = self.one(QUEUES), self.one(["v", "w"])
        handle = await self.queue(name).claim(worker_id)
        self.claimed([handle] if handle else [], self.model.claim(name, worker_id, 1))

    async def claim_batch(self) -> None:
        name, worker_id, n = self.one(QUEUES), self.one(["v", "w"]), self.extent()
        self.claimed(await self.queue(name).claim_batch(worker_id, n), self.model.claim(name, worker_id, n))

    def claimed(self, handles: list[JobHandle], claims: list[Claim]) -> None:
        assert [handle.job for handle in handles] == [claim.row.job() for claim in claims]
        self.handles += zip(handles, claims, strict=True)

    async def ack(self) -> None:
        handle, claim = self.recent(self.handles)
        lands = self.model.settles(claim)
        assert await handle.ack() is lands
        if lands:
            del self.model.rows[claim.row.id]

    async def ack_batch(self) -> None:
        name = self.one(QUEUES)
        named = [pair for pair in self.some(self.handles[-20:]) if pair[1].row.queue == name]
        landed = await self.queue(name).ack_batch(handle for handle, _ in [*named, *named])
        lands = [claim for _, claim in named if self.model.settles(claim)]
        assert landed == len(lands)
        for claim in lands:
            del self.model.rows[claim.row.id]

    async def fail(self) -> None:
        handle, claim = self.recent(self.handles)
        lands = self.model.settles(claim)
        assert await handle.fail("failed") is lands
        if lands:
            claim.row.die(self.clock(), "failed")

    async def retry(self) -> None:
        handle, claim = self.recent(self.handles)
        row, now, lands, delay = claim.row, self.clock(), self.model.settles(claim), self.one([None, *SHIFTS])
        assert await handle.retry("retried", delay) is lands
        if not lands:
            return
        if row.attempts >= row.max_attempts:
            row.die(now, "retried")
            return
        if delay is not None:
            run_at = now + delay
        else:  # the curve: whatever came out, if it is in range
            ceiling = min(row.base_backoff * 2.0 ** (row.attempts - 1), 86_400.0)
            job = await self.queue(row.queue).get_job(row.id)
            assert job is not None
            run_at = job.run_at
            assert now + ceiling / 2 <= run_at <= now + ceiling
        row.go_back(run_at)
        row.last_error = "retried"

    async def release(self) -> None:
        handle, claim = self.recent(self.handles)
        lands, delay = self.model.settles(claim), self.one([None, *SHIFTS])
        assert await handle.release(delay) is lands
        if lands:
            claim.row.attempts -= 1
            claim.row.go_back(claim.row.run_at if delay is None else self.clock() + delay)

    async def heartbeat(self) -> None:
        handle, claim = self.recent(self.handles)
        extend = self.one([None, *SECONDS])
        assert await handle.heartbeat(extend) is self.model.heartbeat(claim, extend)

    async def sweep_expired(self) -> None:
        name = self.one(QUEUES)
        assert await self.queue(name).sweep_expired() == self.model.sweep(name)

    async def revive(self) -> None:
        name = self.one(QUEUES)
        ids = self.job_ids(name)
        assert await self.queue(name).revive(ids) == self.model.revive(name, ids)

    async def delete(self) -> None:
        name = self.one(QUEUES)
        ids = self.job_ids(name)
        assert await self.queue(name).delete(ids) == self.model.delete(name, ids)

    async def statistics(self) -> None:
        name = self.one(QUEUES)
        assert await self.queue(name).statistics() == self.model.statistics(name)

    async def next_ready_at(self) -> None:
        name, now = self.one(QUEUES), self.clock()
        at, first = await self.queue(name).next_ready_at(), self.model.first_claim_at(name)
        if first == now:
            assert at is not None
            assert at <= now
        else:
            assert at is None or at > now
            assert first is None or (at is not None and at <= first)

    async def jobs(self) -> None:
        name, state, limit, after = self.one(QUEUES), self.one([None, *JobState]), self.extent(), self.offset()
        rows = [row.job() for row in self.model.of(name) if state in (None, row.state) and row.id > after]
        assert await self.queue(name).jobs(state, limit=limit, after=after) == rows[: max(limit, 0)]

    async def get_job(self) -> None:
        name = self.one(QUEUES)
        for job_id in self.job_ids(name):
            row = self.model.rows.get(job_id)
            expected = None if row is None or row.queue != name else row.job()
            assert await self.queue(name).get_job(job_id) == expected

    # Streams

    async def publish(self) -> None:
        name, key, payload = self.one(STREAMS), self.one([None, "k", "__alkstore_k"]), self.payload()
        stream, event = self.store.stream(name), self.model.new_event(name, key, payload)
        offset = await (stream.publish(payload) if key is None else stream.publish_with_key(key, payload))
        assert offset == event.offset
        self.model.append(event)

    async def publish_many(self) -> None:
        name, payloads = self.one(STREAMS), self.payloads()
        events = [self.model.new_event(name, None, payload) for payload in payloads]
        assert await self.store.stream(name).publish_many(payloads) == [event.offset for event in events]
        for event in events:
            self.model.append(event)

    async def read_since(self) -> None:
        name, offset, limit = self.one(STREAMS), self.offset(), self.extent()
        assert await self.store.stream(name).read_since(offset, limit) == self.model.read(name, offset, limit)

    async def read_from_consumer(self) -> None:
        name, consumer, limit = self.one(STREAMS), self.one(CONSUMERS), self.extent()
        events = await self.store.stream(name).read_from_consumer(consumer, limit)
        assert events == self.model.read(name, self.model.offset(name, consumer), limit)

    async def save_offset(self) -> None:
        name, consumer, offset = self.one(STREAMS), self.one(CONSUMERS), self.random.randint(-2, 40)
        stream, advances = self.store.stream(name), self.model.save_offset(name, consumer, offset)
        assert await stream.save_offset(consumer, offset) is advances
        assert await stream.get_offset(consumer) == self.model.offset(name, consumer)

    async def trim_to(self) -> None:
        name = self.one(STREAMS)
        horizon = self.one([-(2**70), *range(40), 2**70])
        assert await self.store.stream(name).trim_to(horizon) == self.model.trim(name, horizon)

    async def notify(self) -> None:
        channel = self.one(["channel", "another"])
        await self.store.notify(channel)
        self.model.wakes += channel == "channel"

    # Transactions

    async def begin_tx(self) -> None:
        if len(self.open) < 3:
            staging = Staging()
            self.open.append((await self.store.begin_tx().__aenter__(), staging))
            self.model.open.append(staging)

    async def enqueue_tx(self) -> None:
        tx, staging = self.one(self.open)
        name, payload, options = self.one(QUEUES), self.payload(), self.options()
        staging.rows.append(self.model.new_row(name, payload, PLAIN, **options))
        assert await tx.enqueue_tx(name, payload, **options) == staging.rows[-1].id

    async def outbox_enqueue_tx(self) -> None:
        tx, staging = self.one(self.open)
        payload, options = self.payload(), self.options()
        staging.rows.append(self.model.new_row(BACKING, payload, OUTBOX, **options))
        assert await tx.outbox_enqueue_tx("o", payload, **options) == staging.rows[-1].id

    async def publish_tx(self) -> None:
        tx, staging = self.one(self.open)
        name, payload = self.one(STREAMS), self.payload()
        staging.events.append(self.model.new_event(name, None, payload))
        assert await tx.publish_tx(name, payload) == staging.events[-1].offset

    async def publish_with_key_tx(self) -> None:
        tx, staging = self.one(self.open)
        name, payload = self.one(STREAMS), self.payload()
        staging.events.append(self.model.new_event(name, "k", payload))
        assert await tx.publish_with_key_tx(name, "k", payload) == staging.events[-1].offset

    async def save_offset_tx(self) -> None:
        tx, staging = self.one(self.open)
        name, consumer, offset = self.one(STREAMS), self.one(CONSUMERS), self.random.randint(-2, 40)
        advances = offset > self.model.offset(name, consumer, staging)
        assert await tx.save_offset_tx(name, consumer, offset) is advances
        staging.saves.append((name, consumer, offset))

    async def notify_tx(self) -> None:
        tx, staging = self.one(self.open)
        await tx.notify_tx("channel")
        staging.notifies += 1

    async def get_job_tx(self) -> None:
        tx, staging = self.one(self.open)
        name, seen = self.one(QUEUES), self.model.rows | {row.id: row for row in staging.rows}
        for job_id in self.some([*seen, -1, 2**70]):
            row = seen.get(job_id)
            expected = None if row is None or row.queue != name else row.job()
            assert await tx.get_job_tx(name, job_id) == expected

    async def read_since_tx(self) -> None:
        tx, staging = self.one(self.open)
        name, offset, limit = self.one(STREAMS), self.offset(), self.extent()
        assert await tx.read_since_tx(name, offset, limit) == self.model.read(name, offset, limit, staging)

    async def read_from_consumer_tx(self) -> None:
        tx, staging = self.one(self.open)
        name, consumer, limit = self.one(STREAMS), self.one(CONSUMERS), self.extent()
        offset = self.model.offset(name, consumer, staging)
        assert await tx.get_offset_tx(name, consumer) == offset
        events = await tx.read_from_consumer_tx(name, consumer, limit)
        assert events == self.model.read(name, offset, limit, staging)

    async def commit(self) -> None:
        tx, staging = self.open.pop(self.random.randrange(len(self.open)))
        await tx.commit()
        self.model.commit(staging)

    async def rollback(self) -> None:
        tx, staging = self.open.pop(self.random.randrange(len(self.open)))
        await tx.rollback()
        self.model.open.remove(staging)

    async def abandon(self) -> None:
        self.model.open.remove(self.open.pop(self.random.randrange(len(self.open)))[1])
        for _ in range(3):  # what was collected is discarded by the loop
            await checkpoint()

    # Locks

    async def try_lock(self) -> None:
        name, owner, ttl = self.one(LOCKS), self.one(["a", "b"]), self.one(SECONDS)
        lock, serial = await self.store.try_lock(name, owner, ttl), self.model.try_lock(name, owner, ttl)
        assert (lock is None) == (serial is None)
        if lock is None or serial is None:
            return
        for known, its in self.locks:
            if known.name == name:
                assert (lock.token > known.token, lock.token == known.token) == (serial > its, serial == its)
        self.locks.append((lock, serial))

    async def renew(self) -> None:
        lock, serial = self.recent(self.locks)
        ttl = self.one(SECONDS)
        assert await lock.renew(ttl) is self.model.renew(lock.name, serial, ttl)

    async def unlock(self) -> None:
        lock, serial = self.recent(self.locks)
        assert await lock.release() is self.model.unlock(lock.name, serial)

    # Scheduler

    async def schedule(self) -> None:
        name, interval, queue, payload = self.one(SCHEDULES), self.one([1, 2, 30]), self.one(QUEUES), self.payload()
        options = {name: option for name, option in self.options().items() if name not in ("delay", "run_at")}
        schedule = Schedule(name, f"@every {interval}s", queue, ScheduleOptions(**options))
        assert await self.store.schedule(name, schedule.spec, queue, payload, **options) == schedule
        known = self.model.schedules.get(name)
        next_at = self.clock() + interval if known is None or known.interval != interval else known.next_at
        self.model.schedules[name] = Registered(schedule, interval, json.dumps(payload), next_at)

    async def unschedule(self) -> None:
        name = self.one(SCHEDULES)
        assert await self.store.unschedule(name) is (self.model.schedules.pop(name, None) is not None)

    async def tick(self) -> None:
        assert await tick(self.store) == self.model.tick()

    # All that there is

    async def compare(self) -> None:
        model, store = self.model, self.store
        for name in QUEUES:
            assert await store.queue(name).jobs(limit=ALL) == [row.job() for row in model.of(name)]
        assert await store.outbox("o").jobs(limit=ALL) == [row.job() for row in model.of(BACKING)]
        assert await store.queues() == sorted({row.queue for row in model.rows.values()})
        for name in STREAMS:
            assert await store.stream(name).read_since(0, ALL) == model.read(name, 0, ALL)
            assert await store.stream(name).statistics() == model.stream_statistics(name)
        schedules = [ScheduleState(row.schedule, row.next_at) for _, row in sorted(model.schedules.items())]
        assert await store.schedules() == schedules
        for _ in range(model.wakes):
            self.wakes.receive_nowait()
        model.wakes = 0
        with pytest.raises(anyio.WouldBlock):
            self.wakes.receive_nowait()


Way = Callable[[Walk], Awaitable[None]]

TIME: list[Way] = [Walk.step, Walk.step_to_where_something_changes, Walk.step_to_the_next_claim]
QUEUE: list[Way] = [
    Walk.enqueue,
    Walk.enqueue_many,
    Walk.outbox_enqueue,
    Walk.claim,
    Walk.claim_batch,
    Walk.sweep_expired,
    Walk.revive,
    Walk.delete,
    Walk.statistics,
    Walk.next_ready_at,
    Walk.jobs,
    Walk.get_job,
]
HANDLE: list[Way] = [Walk.ack, Walk.ack_batch, Walk.fail, Walk.retry, Walk.release, Walk.heartbeat]
STREAM: list[Way] = [
    Walk.publish,
    Walk.publish_many,
    Walk.read_since,
    Walk.read_from_consumer,
    Walk.save_offset,
    Walk.trim_to,
    Walk.notify,
]
TRANSACTION: list[Way] = [
    Walk.enqueue_tx,
    Walk.outbox_enqueue_tx,
    Walk.publish_tx,
    Walk.publish_with_key_tx,
    Walk.save_offset_tx,
    Walk.notify_tx,
    Walk.get_job_tx,
    Walk.read_since_tx,
    Walk.read_from_consumer_tx,
]
END: list[Way] = [Walk.commit, Walk.rollback, Walk.abandon]
SCHEDULE: list[Way] = [Walk.schedule, Walk.unschedule, Walk.tick]
LOCK: list[Way] = [Walk.renew, Walk.unlock]
WAYS = [*TIME, *QUEUE, *HANDLE, *STREAM, Walk.begin_tx, *TRANSACTION, *END, *SCHEDULE, Walk.try_lock, *LOCK]
FAVOURITES = [[*TIME, *QUEUE, *HANDLE], [*STREAM, *TRANSACTION], [*TIME, *SCHEDULE, Walk.try_lock, *LOCK]]


async def walk(seed: int, steps: int) -> None:
    clock = ManualClock(START)
    async with open_memory(clock=clock) as store, store.listen("channel") as wakes:
        await Walk(seed, store, wakes, clock).go(steps)


@pytest.mark.parametrize("seed", range(24))
def test_the_memory_engine_does_what_the_contract_says(seed: int) -> None:
    anyio.run(walk, seed, 500, backend=["trio", "asyncio"][seed % 2])


if __name__ == "__main__":
    for number in count(int(sys.argv[1])):
        print("seed", number, flush=True)
        anyio.run(walk, number, 2_000, backend=["trio", "asyncio"][number % 2])
