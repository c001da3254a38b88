"""SQLite beside memory: whatever is asked of both, at the same instants, in and out of transactions, they answer alike.

Ops are driven straight through the engines, so that jitter is an argument. A job and an event go by the *number* of
their creation, since engines may differ in what ids and offsets they give after a transaction was discarded. Look for
more with ``--hypothesis-profile=long``, which walks for an hour.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import count, product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import anyio
import attrs
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from alkstore_trio import (
    JobState,
    ScheduleOptions,
    Store,
    StreamEvent,
    StreamStatistics,
    Tx,
    open_memory,
    open_sqlite,
)
from alkstore_trio import _ops as ops
from alkstore_trio._ops import Move, Op, Read, TxRead, Write
from alkstore_trio._rules.queue import JobRow
from alkstore_trio._rules.stamps import Stamps
from alkstore_trio.testing import ManualClock
from tests.folders import FOLDER

T = TypeVar("T")

Kind = type[Op[Any]]

FAMILIES = (Op, Write, Read, TxRead, Move)
OPS = {op for op in vars(ops).values() if isinstance(op, type) and issubclass(op, Op) and op not in FAMILIES}

START = 1_000_000.0
HUGE = sys.float_info.max
ALL = 10**9
QUEUES, STREAMS, CONSUMERS, SCHEDULES = ["q", "r"], ["s", "t"], ["c", "d"], ["x", "y"]
LOCKS = ["lease", "lease", "other"]
SECONDS = [0.25, 1.0, 2.0, 5.0, 30.0]
STEPS = [0.0, 0.25, 0.25, 1.0, 1.0, 2.5, 30.0, -0.25, -1.0, -5.0, -30.0]
NOWHERE = [-(2**63), -1, 0, 10**12, 2**63 - 1]  # ids and offsets that no row has
TIMES = [1] * 12 + [2, 3] * 4 + [150]  # bodies in an op; the many use up the ids that a store reserved


# --------------------------------------------------------------------------------------------------- one of the two


class Numbers:
    """Which number stands for which id or offset, on one engine; what was never given stands for itself."""

    def __init__(self) -> None:
        self._given: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def give(self, number: int, given: int) -> None:
        assert given > max(self._numbers, default=0), "numbers grow, and no two that stand are the same"
        self._given[number] = given
        self._numbers[given] = number

    def take_back(self, number: int) -> None:
        del self._numbers[self._given.pop(number)]

    def given(self, number: int) -> int:
        return self._given.get(number, number)

    def number(self, given: int) -> int:
        return self._numbers.get(given, given)

    def knows(self, given: int) -> bool:
        return given in self._numbers


class Side:
    """A store, asked in numbers and answering in numbers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.engine = store._engine
        self.ids = Numbers()
        self.offsets = {stream: Numbers() for stream in STREAMS}

    def asked(self, op: Op[Any]) -> Op[Any]:
        """The op with this engine's own ids and offsets."""
        ids = self.ids.given
        match op:
            case ops.GetJob() | ops.Fail() | ops.Retry():
                return attrs.evolve(op, id=ids(op.id))
            case ops.Revive() | ops.Delete():
                return attrs.evolve(op, ids=tuple(map(ids, op.ids)))
            case ops.Ack() | ops.Release() | ops.Heartbeat():
                return attrs.evolve(op, claims=tuple((ids(number), token) for number, token in op.claims))
            case ops.Jobs():
                return attrs.evolve(op, after=ids(op.after))
            case ops.SaveOffset() | ops.ReadSince():
                return attrs.evolve(op, offset=self.offsets[op.stream].given(op.offset))
            case ops.Trim():
                return attrs.evolve(op, horizon=self.offsets[op.stream].given(op.horizon))
        return op

    def learn(self, op: Op[Any], answer: list[int], numbers: list[int]) -> None:
        """Number what an op has made."""
        book = self.offsets[op.stream] if isinstance(op, ops.Publish) else self.ids
        for number, its in zip(numbers, answer, strict=True):
            book.give(number, its)

    def forget(self, tx: "Open") -> None:
        """What a discarded transaction had staged."""
        for number in reversed(tx.jobs):
            self.ids.take_back(number)
        for stream, numbers in tx.events.items():
            for number in numbers:
                self.offsets[stream].take_back(number)

    def told(self, op: Op[Any], answer: Any) -> str:
        """The answer in numbers, spelled out so that 1 is not 1.0."""
        if isinstance(op, ops.GetOffset):
            return repr(self.offsets[op.stream].number(answer))
        if isinstance(op, ops.Release | ops.Heartbeat):
            return repr([(self.ids.number(job_id), token) for job_id, token in answer])
        return repr([self._plain(one) for one in answer] if isinstance(answer, list) else self._plain(answer, op))

    def _plain(self, answer: Any, op: Op[Any] | None = None) -> Any:
        match answer:
            case JobRow():
                fields = attrs.asdict(answer, recurse=False, filter=lambda field, _: field.name != "filed")
                return fields | {"id": self.ids.number(answer.id)}
            case StreamEvent():
                return answer.key, answer.body, answer.created_at, self.offsets[answer.stream].number(answer.offset)
            case StreamStatistics() if isinstance(op, ops.CountEvents):
                number = self.offsets[op.stream].number
                first, last = (None if end is None else number(end) for end in (answer.first, answer.last))
                return first, last, sorted((name, number(offset)) for name, offset in answer.consumers.items())
        return answer


@attrs.define(eq=False)
class Open:
    """A transaction on both sides, and the numbers of what it has staged."""

    blocks: list[AbstractAsyncContextManager[Tx]]
    txs: list[Tx]
    jobs: list[int] = attrs.field(factory=list)
    events: dict[str, list[int]] = attrs.field(factory=lambda: {stream: [] for stream in STREAMS})
    writes: bool = False  # it has published: on SQLite it is the one writer until it ends


# -------------------------------------------------------------------------------------------------------- the draws


class Draws:
    """What there is to ask about, and choices among it."""

    def __init__(self, random: Random, clock: ManualClock) -> None:
        self.random = random
        self.clock = clock
        self.bodies = count(1)
        self.tx: Open | None = None  # the one that is asked just now
        self.jobs: list[int] = []
        self.events: dict[str, list[int]] = {stream: [] for stream in STREAMS}
        self.claims = [("q", 0, 1)]
        self.leases = [1]
        self.boundaries: dict[str, float] = {}

    def one(self, *values: T) -> T:
        return self.random.choice(values)

    def odds(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def late(self, values: list[T]) -> T:
        """One of the last few."""
        return self.random.choice(values[-6:])

    def queue(self) -> str:
        return self.one("q", "q", "q", "r")

    def stream(self) -> str:
        return self.one(*STREAMS)

    def body(self) -> str:
        return f'"{next(self.bodies)}"'

    def some_bodies(self) -> tuple[str, ...]:
        return tuple(self.body() for _ in range(self.one(*TIMES)))

    def seconds(self) -> float:
        return self.one(*SECONDS)

    def limit(self) -> int:
        return self.one(1, 2, ALL)

    def stamps(self) -> Stamps:
        return Stamps(
            self.one(*SECONDS, *SECONDS, 30.0, 30.0, 1e-12, HUGE),
            self.one(1, 1, 2, 3),
            self.one(0.0, 1.0, 5.0),
            self.one(None, 0.0, 2.0, 30.0, HUGE),
        )

    def job(self) -> int:
        known = [*self.jobs, *(self.tx.jobs if self.tx else ())]
        return self.one(*NOWHERE) if not known or self.odds(10) else self.late(known)

    def some_jobs(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.job() for _ in range(self.one(1, 2, 5))))

    def known_offsets(self, stream: str) -> list[int]:
        return [*self.events[stream], *(self.tx.events[stream] if self.tx else ())]

    def offset(self, stream: str) -> int:
        known = self.known_offsets(stream)
        return self.one(*NOWHERE) if not known or self.odds(20) else self.late(known)

    def claim(self) -> tuple[str, int, int]:
        """What a handle holds; sometimes not the right thing."""
        queue, number, token = self.late(self.claims)
        if self.odds(15):
            token += self.one(-1, 1)
        return (self.queue() if self.odds(5) else queue), number, token

    # Ops of which one part depends on another

    def enqueue(self) -> ops.Enqueue:
        return ops.Enqueue(
            self.queue(),
            self.some_bodies(),
            self.stamps(),
            self.one(*8 * [None], 0.0, 1.0, 5.0, -2.0, HUGE, -HUGE),
            self.one(*8 * [None], self.clock() + self.one(*STEPS), -1e300, 1e300),
            self.one(*8 * [0], 1, -1, 2**63 - 1, -(2**63)),
            self.one(*8 * [None], 1.0, 1.0, 5.0, 5.0, 30.0, 0.0, -1.0, HUGE),
        )

    def save_offset(self) -> ops.SaveOffset:
        # Of the offsets beyond the end only the engine knows whose they will be: none of them is saved.
        stream = self.stream()
        return ops.SaveOffset(stream, self.one(*CONSUMERS), self.late([-1, 0, *self.known_offsets(stream)]))

    def read_since(self) -> ops.ReadSince:
        stream = self.stream()
        return ops.ReadSince(stream, self.offset(stream), self.limit())

    def trim(self) -> ops.Trim:
        stream = self.stream()
        return ops.Trim(stream, self.offset(stream))

    def together(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """What some handles of a queue hold."""
        claims = [self.claim() for _ in range(self.one(1, 1, 2, 4))]
        return claims[0][0], tuple({number: token for _, number, token in claims}.items())

    def add_schedule(self) -> ops.AddSchedule:
        interval = self.one(1.0, 2.0, 30.0)
        options = ScheduleOptions(self.one(0, 7, -(2**63)), self.one(None, 1.0, -1.0), self.one(None, 1, 2))
        spec = f"@every {interval:.0f}s"
        return ops.AddSchedule(self.one(*SCHEDULES), spec, interval, self.queue(), self.body(), options)

    def fire(self) -> ops.Fire:
        name, now = self.one(*SCHEDULES), self.clock()
        seen = now if self.odds(15) else self.boundaries.get(name, now)
        at = now - self.one(0.0, 0.0, 1.0)
        return ops.Fire(name, seen, now + 2.0, self.one(1, 1, 2, 64), at, "lease", self.late(self.leases))


DRAWS: dict[Kind, Callable[[Draws], Op[Any]]] = {
    ops.Enqueue: Draws.enqueue,
    ops.Publish: lambda draw: ops.Publish(draw.stream(), draw.one(None, "k"), draw.some_bodies()),
    ops.Notify: lambda draw: ops.Notify("channel"),
    ops.SaveOffset: Draws.save_offset,
    ops.GetJob: lambda draw: ops.GetJob(draw.queue(), draw.job()),
    ops.GetOffset: lambda draw: ops.GetOffset(draw.stream(), draw.one(*CONSUMERS)),
    ops.ReadSince: Draws.read_since,
    ops.ReadFromConsumer: lambda draw: ops.ReadFromConsumer(draw.stream(), draw.one(*CONSUMERS), draw.limit()),
    ops.Jobs: lambda draw: ops.Jobs(draw.queue(), draw.one(None, *JobState), draw.limit(), draw.one(0, draw.job())),
    ops.CountJobs: lambda draw: ops.CountJobs(draw.queue()),
    ops.NextReadyAt: lambda draw: ops.NextReadyAt(draw.queue()),
    ops.CountEvents: lambda draw: ops.CountEvents(draw.stream()),
    ops.QueueNames: lambda draw: ops.QueueNames(),
    ops.StreamNames: lambda draw: ops.StreamNames(),
    ops.Schedules: lambda draw: ops.Schedules(),
    ops.DueSchedules: lambda draw: ops.DueSchedules(),
    ops.ReadClock: lambda draw: ops.ReadClock(),
    ops.Claim: lambda draw: ops.Claim(draw.queue(), draw.one("v", "w"), draw.one(1, 1, 2, 5, 2**63 - 1)),
    ops.Ack: lambda draw: ops.Ack(*draw.together()),
    ops.Fail: lambda draw: ops.Fail(*draw.claim(), "failed \ufffd"),
    ops.Retry: lambda draw: ops.Retry(
        *draw.claim(), "again", draw.one(None, None, 0.0, -1.0, 2.0, HUGE, -HUGE), draw.one(0.0, 0.3, 1.0)
    ),
    ops.Release: lambda draw: ops.Release(*draw.together(), draw.one(None, 0.0, 2.0, -2.0, HUGE)),
    ops.Heartbeat: lambda draw: ops.Heartbeat(*draw.together(), draw.one(None, 1e-12, 1.0, 30.0, HUGE)),
    ops.Sweep: lambda draw: ops.Sweep(draw.queue()),
    ops.Revive: lambda draw: ops.Revive(draw.queue(), draw.some_jobs()),
    ops.Delete: lambda draw: ops.Delete(draw.queue(), draw.some_jobs()),
    ops.Trim: Draws.trim,
    ops.TryLock: lambda draw: ops.TryLock(draw.one(*LOCKS), draw.one("a", "b"), draw.one(*SECONDS, HUGE)),
    ops.Renew: lambda draw: ops.Renew(draw.one(*LOCKS), draw.late(draw.leases), draw.seconds()),
    ops.Unlock: lambda draw: ops.Unlock(draw.one(*LOCKS), draw.late(draw.leases)),
    ops.AddSchedule: Draws.add_schedule,
    ops.RemoveSchedule: lambda draw: ops.RemoveSchedule(draw.one(*SCHEDULES)),
    ops.Fire: Draws.fire,
}

# What a walk has on its mind; it asks of everything now and then.
FAVOURITES: dict[str, list[Kind]] = {
    "claims": [ops.Enqueue, ops.Enqueue, ops.Claim, ops.Claim, ops.Ack, ops.Retry, ops.Release, ops.Heartbeat],
    "the dead": [ops.Enqueue, ops.Claim, ops.Claim, ops.Fail, ops.Sweep, ops.Revive, ops.Delete, ops.NextReadyAt],
    "streams": [ops.Publish, ops.SaveOffset, ops.ReadSince, ops.ReadFromConsumer, ops.Trim],
    "schedules": [ops.AddSchedule, ops.TryLock, ops.TryLock, ops.Fire, ops.Fire, ops.Renew, ops.Unlock, ops.Claim],
}
IN_TX = [op for op in DRAWS if issubclass(op, Write | TxRead)]

# All there is to see.
EVERYTHING: list[Op[Any]] = [
    *(ops.Jobs(queue, state, ALL, 0) for queue in QUEUES for state in (None, *JobState)),
    *(kind(queue) for kind in (ops.CountJobs, ops.NextReadyAt) for queue in QUEUES),
    *(ops.CountEvents(stream) for stream in STREAMS),
    *(ops.ReadSince(stream, 0, ALL) for stream in STREAMS),
    *(ops.GetOffset(stream, consumer) for stream in STREAMS for consumer in CONSUMERS),
    ops.QueueNames(),
    ops.StreamNames(),
    ops.Schedules(),
    ops.DueSchedules(),
]


# ------------------------------------------------------------------------------------------------------ the machine

Seen = Counter[tuple[Kind, bool, bool]]  # ops by whether they were asked in a transaction, and granted


def instants(row: JobRow) -> list[float]:
    """Those at which something happens to a job."""
    gone = None if row.died_at is None else row.died_at + (row.stamps.dead_retention or 0.0)
    return [at for at in (row.run_at, row.expires_at, row.claim_expires_at, gone) if at is not None]


def nearby(moments: list[float]) -> list[float]:
    """Of some moments those a clock may stand at, and those just before and after."""
    sane = {at for at in moments if abs(at - START) < START / 2}
    return sorted(sane | {math.nextafter(at, way) for at in sane for way in (-math.inf, math.inf)})


class Machine:
    """Asks both sides what was drawn, and holds the answers against each other."""

    def __init__(self, random: Random, sides: list[Side], clock: ManualClock, kinds: list[Kind], seen: Seen) -> None:
        self.draw = Draws(random, clock)
        self.sides = sides
        self.clock = clock
        self.seen = seen
        self.numbers = count(1)
        self.open: list[Open] = []
        self.kinds = kinds

    @property
    def writer(self) -> Open | None:
        return next((tx for tx in self.open if tx.writes), None)

    async def go(self, steps: int) -> None:
        draw = self.draw
        for _ in range(steps):
            ways = [self.step_clock, self.ask_outside, self.ask_outside, self.ask_outside]
            if self.open:
                ways += [self.ask_inside, self.ask_inside, self.end]
            if self.writer is None:
                ways.append(self.tour)
            if len(self.open) < 2 and draw.odds(10 if self.open else 30):
                ways.append(self.begin)
            await draw.one(*ways)()
            if draw.odds(3):
                await self.compare()
        while self.open:
            await self.end()
        await self.compare()

    # Time

    def set_clock(self, moment: float) -> None:
        note(f"clock.set({moment!r})")
        self.clock.set(moment)

    async def step_clock(self) -> None:
        if self.draw.odds(60):
            self.set_clock(self.clock() + self.draw.one(*STEPS))
        else:
            boundaries = list(self.draw.boundaries.values())
            for queue in QUEUES:
                for row in (await self.sides[0].engine.do(ops.Jobs(queue, None, ALL, 0)))[-8:]:
                    boundaries += instants(row)
            if near := nearby(boundaries):
                self.set_clock(self.draw.one(*near))

    async def tour(self) -> None:
        """Claim on all sides of what one job goes through, to and fro: what is filed anew by each must not get lost."""
        queue = self.draw.queue()
        rows = await self.sides[0].engine.do(ops.Jobs(queue, None, ALL, 0))
        near = nearby(instants(self.draw.late(rows))) if rows else []
        for _ in range(self.draw.one(2, 4, 6) if near else 0):
            self.set_clock(self.draw.one(*near))
            await self.do(self.draw.one(ops.Claim(queue, "v", 1), ops.Claim(queue, "v", 1), ops.Sweep(queue)))
            await self.do(ops.NextReadyAt(queue))

    # Ops

    async def ask_outside(self) -> None:
        kind = self.draw.one(*self.kinds)
        if self.writer is not None and not issubclass(kind, Read):
            return  # it would wait for a transaction of this very task
        await self.do(DRAWS[kind](self.draw))

    async def do(self, op: Op[Any]) -> None:
        """Ask outside of a transaction, and remember what may be asked about it."""
        note(f"{op}")
        answer = await self.ask(op, [side.engine for side in self.sides])
        match op:
            case ops.Enqueue():
                self.draw.jobs += answer
            case ops.Publish():
                self.draw.events[op.stream] += answer
            case ops.Claim():
                number = self.sides[0].ids.number
                self.draw.claims += [(row.queue, number(row.id), row.token) for row in answer]
            case ops.Heartbeat():
                number = self.sides[0].ids.number
                self.draw.claims += [(op.queue, number(job_id), token) for job_id, token in answer]  # of interest again
            case ops.TryLock() if answer:
                self.draw.leases.append(answer)
            case ops.Fire() if answer:
                await self.number_the_fired(answer)
            case _:
                pass
        if isinstance(op, ops.AddSchedule | ops.Fire):
            states = await self.ask(ops.Schedules(), [side.engine for side in self.sides])
            self.draw.boundaries = {state.schedule.name: state.next_at for state in states}

    async def ask_inside(self) -> None:
        draw, writer = self.draw, self.writer
        tx = draw.tx = draw.one(*self.open)
        try:
            op = DRAWS[draw.one(*IN_TX)](draw)
        finally:
            draw.tx = None
        if writer not in (None, tx) and isinstance(op, ops.Publish | ops.Enqueue):
            return  # the one would wait for the writer, the other does when it needs new ids
        note(f"tx {self.open.index(tx)}: {op}")
        answer = await self.ask(op, [each._life for each in tx.txs], tx)
        if isinstance(op, ops.Enqueue):
            tx.jobs += answer
        elif isinstance(op, ops.Publish):
            tx.events[op.stream] += answer
            tx.writes = True

    async def ask(self, op: Op[Any], units: list[Any], tx: Open | None = None) -> Any:
        """Memory's answer, once SQLite has given the same; for what is numbered, the numbers."""
        answers: list[Any] = []
        told = []
        numbered = isinstance(op, ops.Enqueue | ops.Publish)
        for side, unit in zip(self.sides, units, strict=True):
            answers.append(await unit.do(side.asked(op)))
            if not numbered:  # at once: memory changes a row in place by its first claim
                told.append(side.told(op, answers[-1]))
        self.seen[type(op), tx is not None, bool(answers[0])] += 1
        if numbered:
            return self.number(op, answers)
        memory, sqlite = told
        assert sqlite == memory, f"to {op}"
        return answers[0]

    def number(self, op: Op[Any], answers: list[list[int]]) -> list[int]:
        [n] = {len(answer) for answer in answers}
        numbers = [next(self.numbers) for _ in range(n)]
        for side, answer in zip(self.sides, answers, strict=True):
            side.learn(op, answer, numbers)
        return numbers

    async def number_the_fired(self, fired: ops.Fired) -> None:
        """The ids of a fire are in no answer."""
        page = ops.Jobs(fired.queue, None, ALL, 0)
        rows = [await side.engine.do(page) for side in self.sides]
        new = [
            [row.id for row in found if not side.ids.knows(row.id)]
            for side, found in zip(self.sides, rows, strict=True)
        ]
        assert {len(ids) for ids in new} == {fired.times}
        self.draw.jobs += self.number(page, new)

    async def compare(self) -> None:
        note("compare")
        for op in EVERYTHING:
            await self.ask(op, [side.engine for side in self.sides])

    # Transactions

    async def begin(self) -> None:
        note("begin")
        blocks = [side.store.begin_tx() for side in self.sides]
        self.open.append(Open(blocks, [await block.__aenter__() for block in blocks]))

    async def end(self) -> None:
        tx = self.draw.one(*self.open)
        hows = [Tx.rollback, None]  # the one is said, the other is leaving the block
        if self.writer in (None, tx):
            hows += [Tx.commit, Tx.commit]
        how = self.draw.one(*hows)
        note(f"tx {self.open.index(tx)}: {how.__name__ if how else 'leave'}")
        self.open.remove(tx)
        for each, block in zip(tx.txs, tx.blocks, strict=True):
            if how is not None:
                await how(each)
            await block.__aexit__(None, None, None)
        if how is Tx.commit:
            self.draw.jobs += tx.jobs
            for stream in STREAMS:
                self.draw.events[stream] += tx.events[stream]
        else:
            for side in self.sides:
                side.forget(tx)


async def agree(random: Random, favourites: list[Kind], seen: Seen) -> None:
    clock = ManualClock(START)
    with TemporaryDirectory(dir=FOLDER) as folder:
        file = Path(folder, "store.db")
        async with open_memory(clock=clock) as memory, open_sqlite(file, durability="normal", clock=clock) as sqlite:
            machine = Machine(random, [Side(memory), Side(sqlite)], clock, [*DRAWS, *5 * favourites], seen)
            await machine.go(random.randint(1, 60))


def test_every_op_has_its_draw() -> None:
    assert set(DRAWS) == OPS


# What walks have found, at its smallest: jobs that a claim files anew while the clock is ahead, and that it left behind
# where nobody looked for them when the clock was set back.


Steps = list[tuple[float, Op[Any]]]


async def told_after(steps: Steps, file: Path) -> tuple[str, str]:
    """The last answers of both, each op asked at its seconds from the start."""
    clock = ManualClock(START)
    async with open_memory(clock=clock) as memory, open_sqlite(file, durability="normal", clock=clock) as sqlite:
        told = []
        for side in (Side(memory), Side(sqlite)):
            answer: Any = None
            for after, op in steps:
                clock.set(START + after)
                answer = await side.engine.do(op)
            told.append(side.told(steps[-1][1], answer))
    memories, sqlites = told
    return memories, sqlites


def enqueue(visibility_timeout: float, expires: float) -> ops.Enqueue:
    return ops.Enqueue("q", ("1",), Stamps(visibility_timeout, 1, 5.0, None), None, None, 0, expires)


CLAIM = ops.Claim("q", "w", 1)


def test_what_is_exhausted_dies_although_it_was_once_filed_as_expired(tmp_path: Path) -> None:
    lapses_then_expires = enqueue(visibility_timeout=2.0, expires=5.0)
    steps: Steps = [
        (0.0, lapses_then_expires),
        (0.0, CLAIM),
        (6.0, CLAIM),
        (1.0, CLAIM),
        (3.0, CLAIM),
        (3.0, ops.GetJob("q", 1)),
    ]
    memory, sqlite = anyio.run(told_after, steps, tmp_path / "store.db")
    assert "max attempts exceeded" in memory
    assert sqlite == memory


def test_a_claim_that_is_valid_again_is_waited_for_although_its_job_has_expired(tmp_path: Path) -> None:
    expires_then_lapses = enqueue(visibility_timeout=10.0, expires=2.0)
    steps: Steps = [(0.0, expires_then_lapses), (0.0, CLAIM), (11.0, CLAIM), (5.0, ops.NextReadyAt("q"))]
    memory, sqlite = anyio.run(told_after, steps, tmp_path / "store.db")
    assert memory == repr(ops.NextReady(math.nextafter(START + 10.0, math.inf), START + 5.0))
    assert sqlite == memory


@pytest.mark.parametrize("favourites", FAVOURITES.values(), ids=FAVOURITES)
def test_sqlite_answers_as_memory_does(favourites: list[Kind]) -> None:
    seen: Seen = Counter()

    # Shrinking a walk takes minutes and gains little, as its last steps tell most.
    @settings(phases=[Phase.reuse, Phase.generate])
    @given(st.randoms(use_true_random=False), st.sampled_from(["trio", "asyncio"]))
    def run(random: Random, backend: str) -> None:
        anyio.run(agree, random, favourites, seen, backend=backend)

    run()
    # What the walks never came to has not been compared.
    assert {kind for kind, _, _ in seen} == OPS
    assert {kind for kind, inside, _ in seen if inside} == set(IN_TX)
    moves = {kind for kind in favourites if issubclass(kind, Move)} - {ops.AddSchedule}  # which is never refused
    assert {(kind, granted) for kind, _, granted in seen if kind in moves} == {*product(moves, [True, False])}
