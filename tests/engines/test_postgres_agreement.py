"""Postgres beside memory: whatever is asked of both at one instant, in or out of a transaction, they answer alike.

What is drawn, asked and compared is `test_sqlite_agreement`'s. Here many may write at once: only what two transactions
would wait for each other for is not asked. Look for more with ``--hypothesis-profile=long``.
"""

import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from random import Random
from typing import Any

import anyio
import attrs
import psycopg
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from alkstore_trio import Store, Tx, open_memory, open_postgres
from alkstore_trio import _ops as ops
from alkstore_trio._ops import Move, Op
from alkstore_trio.testing import ManualClock
from tests.engines.faults import TABLES
from tests.engines.test_sqlite_agreement import (
    CLAIM,
    DRAWS,
    FAVOURITES,
    IN_TX,
    OPS,
    START,
    Kind,
    Machine,
    Open,
    Seen,
    Side,
    Steps,
    enqueue,
)
from tests.servers import Server

BACKENDS = ["trio", "asyncio"]
_PROFILE: settings = settings()  # the one that the run was started with; walks are fewer here, and longer


class PostgresSide(Side):
    """Tokens, too, are its own: a try for a lock that is held uses one up."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.tokens: list[int] = []  # the n-th hold of all has the number n, which is memory's token

    def asked(self, op: Op[Any]) -> Op[Any]:
        if isinstance(op, ops.Renew | ops.Unlock | ops.Fire):
            token = self.tokens[op.token - 1] if op.token <= len(self.tokens) else 0
            return attrs.evolve(op, token=token)
        return super().asked(op)

    def told(self, op: Op[Any], answer: Any) -> str:
        if isinstance(op, ops.TryLock) and answer is not None:
            if answer not in self.tokens:
                assert answer > max(self.tokens, default=0), "tokens grow"
                self.tokens.append(answer)
            return repr(self.tokens.index(answer) + 1)
        return super().told(op, answer)


class Many(Machine):
    """Many may write; a stream, and a consumer's offset, are their writer's until it ends."""

    @property
    def writer(self) -> Open | None:
        return None

    async def go(self, steps: int) -> None:
        self.held: dict[object, Open] = {}
        await super().go(steps)

    @staticmethod
    def what_of(op: Op[Any]) -> object:
        match op:
            case ops.Publish():
                return op.stream
            case ops.SaveOffset():
                return op.stream, op.consumer
        return None

    async def ask_outside(self) -> None:
        op = DRAWS[self.draw.one(*self.kinds)](self.draw)
        if self.what_of(op) not in self.held:  # else it would wait for a transaction of this very task
            await self.do(op)

    async def ask_inside(self) -> None:
        draw = self.draw
        tx = draw.tx = draw.one(*self.open)
        try:
            op = DRAWS[draw.one(*IN_TX)](draw)
        finally:
            draw.tx = None
        what = self.what_of(op)
        if self.held.get(what, tx) is not tx:
            return
        note(f"tx {self.open.index(tx)}: {op}")
        answer = await self.ask(op, [each._life for each in tx.txs], tx)
        if what is not None:
            self.held[what] = tx
        if isinstance(op, ops.Enqueue):
            tx.jobs += answer
        elif isinstance(op, ops.Publish):
            tx.events[op.stream] += answer

    async def end(self) -> None:
        before = set(self.open)
        await super().end()
        [ended] = before - set(self.open)
        self.held = {what: tx for what, tx in self.held.items() if tx is not ended}


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """A server's."""
    with Server() as server:
        yield server.dsn


@asynccontextmanager
async def opened(dsn: str, clock: ManualClock) -> AsyncIterator[Store]:
    """An empty store; made once, and emptied after each use."""
    try:
        async with open_postgres(dsn, schema="agreement", max_connections=4, clock=clock) as store:
            yield store
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(";".join(f"delete from agreement.{table}" for table in TABLES).encode())


async def agree(dsn: str, random: Random, favourites: list[Kind], seen: Seen) -> None:
    clock = ManualClock(START)
    async with open_memory(clock=clock) as memory, opened(dsn, clock) as postgres:
        machine = Many(random, [Side(memory), PostgresSide(postgres)], clock, [*DRAWS, *5 * favourites], seen)
        await machine.go(random.randint(1, 200))  # opening costs as much as fifty steps


async def told_after(dsn: str, steps: Steps) -> tuple[str, str]:
    """The last answers of both, each op asked at its seconds from the start."""
    clock = ManualClock(START)
    async with open_memory(clock=clock) as memory, opened(dsn, clock) as postgres:
        sides = (Side(memory), PostgresSide(postgres))
        told = []
        for after, op in steps:
            clock.set(START + after)
            answers = [await side.engine.do(side.asked(op)) for side in sides]
            told = [side.told(op, answer) for side, answer in zip(sides, answers, strict=True)]
            if isinstance(op, ops.Enqueue):
                for side, answer in zip(sides, answers, strict=True):
                    side.learn(op, answer, answers[0])
    memories, postgreses = told
    return memories, postgreses


# What walks have found on any engine, at its smallest.


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_exhausted_dies_although_it_was_once_filed_as_expired(dsn: str, backend: str) -> None:
    steps: Steps = [
        (0.0, enqueue(visibility_timeout=2.0, expires=5.0)),
        (0.0, CLAIM),
        (6.0, CLAIM),
        (1.0, CLAIM),
        (3.0, CLAIM),
        (3.0, ops.GetJob("q", 1)),
    ]
    memory, postgres = anyio.run(told_after, dsn, steps, backend=backend)
    assert "max attempts exceeded" in memory
    assert postgres == memory


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_claim_that_is_valid_again_is_waited_for_although_its_job_has_expired(dsn: str, backend: str) -> None:
    steps: Steps = [
        (0.0, enqueue(visibility_timeout=10.0, expires=2.0)),
        (0.0, CLAIM),
        (11.0, CLAIM),
        (5.0, ops.NextReadyAt("q")),
    ]
    memory, postgres = anyio.run(told_after, dsn, steps, backend=backend)
    assert memory == repr(ops.NextReady(math.nextafter(START + 10.0, math.inf), START + 5.0))
    assert postgres == memory


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_rows_than_one_statement_files_anew_come_due_at_once(dsn: str, backend: str) -> None:
    """500 of each kind go in one statement; none of the rest is overlooked, nor out of order."""
    many = ops.Enqueue("q", tuple(map(str, range(2_700))), enqueue(30.0, 0.0).stamps, 1.0, None, 0, None)
    few = attrs.evolve(many, bodies=("-1", "-2"), priority=1)
    steps: Steps = [(0.0, many), (0.0, few), (1.0, ops.Claim("q", "w", 3))]
    memory, postgres = anyio.run(told_after, dsn, steps, backend=backend)
    assert "'-1'" in memory
    assert postgres == memory


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("inside", [0, 1], ids=["saved nothing", "saved"])
def test_a_transaction_that_has_saved_nothing_is_in_nobodys_way(dsn: str, backend: str, inside: int) -> None:
    """Where nothing was written, nothing waits: see section 12, who waits for whom."""

    async def save() -> None:
        async with opened(dsn, ManualClock(START)) as store:
            stream = store.stream("s")
            await stream.publish_many([1, 2])
            async with store.begin_tx() as tx:
                await tx.get_offset_tx("s", "c")
                assert await tx.save_offset_tx("s", "c", inside) is bool(inside)
                if inside:
                    with pytest.raises(RuntimeError, match="this task"):
                        await stream.save_offset("c", 2)
                else:
                    assert await stream.save_offset("c", 2)
                await Tx.rollback(tx)

    anyio.run(save, backend=backend)


@pytest.mark.parametrize("favourites", FAVOURITES.values(), ids=FAVOURITES)
def test_postgres_answers_as_memory_does(dsn: str, favourites: list[Kind]) -> None:
    seen: Seen = Counter()

    # Shrinking a walk takes minutes and gains little, as its last steps tell most.
    @settings(phases=[Phase.reuse, Phase.generate], max_examples=max(12, _PROFILE.max_examples // 8))
    @given(st.randoms(use_true_random=False), st.sampled_from(BACKENDS))
    def run(random: Random, backend: str) -> None:
        anyio.run(agree, dsn, random, favourites, seen, backend=backend)

    run()
    # What the walks never came to has not been compared.
    assert {kind for kind, _, _ in seen} == OPS
    assert {kind for kind, inside, _ in seen if inside} == set(IN_TX)
    moves = {kind for kind in favourites if issubclass(kind, Move)} - {ops.AddSchedule}  # which is never refused
    assert {(kind, granted) for kind, _, granted in seen if kind in moves} == {*product(moves, [True, False])}
