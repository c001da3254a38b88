"""Every verb on Postgres, its n-th statement refused or its connection cut at the n-th exchange, n = 1, 2, ... in turn.

Each time, until it passes, it did nothing or all, says which as far as that can be known, and leaves the store and the
books whole.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Literal

import anyio
import attrs
import psycopg
import pytest
from anyio.lowlevel import checkpoint
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from alkstore_trio import CommitUnknown, DatabaseError, Store, open_postgres
from alkstore_trio._engines.postgres import wakes
from alkstore_trio._waiting import passes
from alkstore_trio.testing import ManualClock
from alkstore_trio.testing.conformance.verbs import spoiling, works
from tests.engines.books import Account, Sessions, account, balanced, balances, pool_of
from tests.engines.faults import CASES, HOSTED, PATIENT, START, TABLES, HurriedClock, places
from tests.engines.places import engine_of
from tests.engines.wire import REFUSALS, Fault, Wire, wired

pytestmark = pytest.mark.anyio

_CONNECTIONS = 3  # of a store, for statements
_LOOKS = 5  # in a row at which a store asks nothing, after which it does not go on by itself
_BOUND = 100.0  # seconds that no sweep takes

# What commits nothing, and so always knows what became of it.
_CERTAIN = re.compile(
    r"Store\.(schedules|queues|streams)|Queue\.(get_job|jobs|statistics|next_ready_at)"
    r"|Stream\.(read_since|read_from_consumer|get_offset|statistics)|Tx\.(?!commit).*|.*Receiver\.(receive|__anext__)"
)


# What goes on whatever the server does, and what asks it nothing.
_NEVER_FAIL = {
    "Tx.rollback",
    *(f"{kind}Receiver.{verb}" for kind in ("Wake", "Event") for verb in ("receive", "__anext__")),
}

Kind = Literal["unsent", "unanswered", "torn"]


@attrs.frozen
class World:
    """A schema, the wire to it, and who looks at it from outside."""

    dsn: str
    schema: str
    wire: Wire
    looking: psycopg.Connection[tuple[Any, ...]]
    nothing: dict[str, Any] = attrs.field(factory=dict)  # what is there without each verb's call
    everything: dict[str, Any] = attrs.field(factory=dict)  # what is there after it

    @property
    def _past(self) -> str:
        return make_conninfo(self.dsn, application_name=self.schema)

    @property
    def _through(self) -> str:
        address: dict[str, str | int] = {
            "host": "127.0.0.1",
            "hostaddr": "127.0.0.1",
            "port": self.wire.port,
            "sslmode": "disable",
        }
        return make_conninfo(self._past, **address)

    def open(self, clock: ManualClock) -> Any:
        """A store whose statements go through the wire, and that listens past it."""
        return open_postgres(
            self._through, schema=self.schema, listen_dsn=self._past, max_connections=_CONNECTIONS, clock=clock
        )

    def open_new(self) -> Any:
        """A store with a schema of its own, all of whose connections go through the wire."""
        return open_postgres(self._through, schema=f"{self.schema}_new", max_connections=_CONNECTIONS)

    def drop_new(self) -> None:
        """Have there be nothing yet where that store opens."""
        self.looking.execute(f"drop schema if exists {self.schema}_new cascade".encode())

    def rows(self) -> tuple[Any, ...]:
        """All rows that are there, but for ids and tokens, which a failure may use up, and for who was woken.

        A connection that is lost wakes whoever may have missed something.
        """
        tables = ", ".join(
            f"(select array_agg(row - '{{id,token}}'::text[] order by row)"
            f" from (select to_jsonb({table}) as row from {self.schema}.{table}) as rows"
            " where row->>'stream' is distinct from 'left' and row->>'name' is distinct from 'left')"
            for table in TABLES
        )
        [row] = self.looking.execute(f"select {tables}".encode())
        return row

    def clear(self, store: Store, clock: ManualClock) -> None:
        """Have a store be as new, but for its connections."""
        clock.set(START)
        cursors = engine_of(store)._cursors
        for queue in tuple(cursors._cursors):
            cursors.drop(queue)
        emptied = "; ".join(f"delete from {self.schema}.{table}" for table in TABLES)
        self.looking.execute(f"{emptied}; select setval('{self.schema}.jobs_id_seq', 1, false)".encode())

    def books(self) -> Account:
        """What this process and the server have open, but for the wire's own."""
        there = {**account(), **Sessions(self.looking, self.schema).account()}
        there["descriptors"]["socket"] -= self.wire.descriptors
        return there

    def books_with(self, store: Store) -> Account:
        """The same, less what the store's connections come to: an idle session each."""
        engine = engine_of(store)
        connections = len(engine.pool._idle) + (engine.voice._connection is not None) + 1  # that which listens
        there = {**self.books(), **pool_of(store)}
        there["descriptors"]["socket"] -= connections
        there["sessions"]["idle"] -= connections
        return there


@pytest.fixture(scope="module")
def world(dsn: str) -> Iterator[World]:
    schema = f"faults_{os.getpid()}"
    params = conninfo_to_dict(dsn)
    host, port = str(params.get("host") or "127.0.0.1"), int(params.get("port") or 5432)
    target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
    with psycopg.connect(dsn, autocommit=True) as looking, wired(target, schema) as wire:
        world = World(dsn, schema, wire, looking)
        anyio.run(_prepare, world)
        yield world
        looking.execute(f"drop schema {schema} cascade".encode())


async def _prepare(world: World) -> None:
    clock = ManualClock()
    async with balances("the first store", world.books), world.open(clock) as store:
        world.looking.execute(REFUSALS.format(schema=world.schema).encode())
        for seen in (world.nothing, world.everything):
            for name, arrangement in CASES.items():
                world.clear(store, clock)
                async with arrangement(store, clock) as call:
                    if seen is world.everything:
                        await call()
                seen[name] = world.rows()


def _forget_plans(store: Store) -> None:
    """Have each statement prepared again, so that this may fail too."""
    pool = engine_of(store).pool
    for connection in (*pool._idle, *pool._taken):
        connection._plans.clear()


Check = Callable[[str, str, Fault, DatabaseError, bool], object]


async def _sweep(world: World, faults: Sequence[Fault], check: Check) -> None:
    """Have every exchange of every verb fail; ``check`` looks at each error, told whether the effect stands."""
    clock = ManualClock()
    failed = set()
    turns = cycle(faults)
    async with balances("the store", world.books), world.open(clock) as store:
        await _quiet(store)
        books = world.books_with(store)
        for name, arrangement in CASES.items():
            for n in places(name):
                fault = next(turns)
                about = f"{name}, whose exchange {n} is {fault}"
                world.clear(store, clock)
                stands = True  # once the arrangement is left
                with spoiling(store):
                    async with arrangement(store, clock) as call:
                        await _quiet(store)
                        _forget_plans(store)
                        before = world.rows()
                        failure = None
                        with _silent(store):
                            world.wire.fail(n, fault)
                            try:
                                await call()
                            except DatabaseError as error:
                                failure = error
                            reached = world.wire.disarm()
                        if failure is not None:
                            failed.add(name)
                            stands = world.rows() != before
                            check(name, about, fault, failure, stands)
                        elif name not in _NEVER_FAIL and fault.code != _FORGOTTEN:
                            assert not reached, about
                        if not stands and not name.startswith("Tx."):
                            await call()
                            stands = True
                assert world.rows() == (world.everything if stands else world.nothing)[name], about
                if not reached:
                    break
            await balanced(lambda: world.books_with(store), books, name)
        world.clear(store, clock)
        await works(store)
    assert failed == CASES.keys() - _NEVER_FAIL


async def _quiet(store: Store) -> None:
    """Wait until the store asks nothing by itself, so that the next exchanges are those of the call."""
    engine = engine_of(store)
    looks = 0
    while looks < _LOOKS:
        await checkpoint()
        taken = engine.pool._taken
        connects = engine.pool._places + len(taken) < _CONNECTIONS
        asks = engine.voice._speaking or connects or any(connection.busy for connection in taken)
        looks = 0 if asks else looks + 1


@contextmanager
def _silent(store: Store) -> Iterator[None]:
    """Have other stores told of wakes only after the block, so that its exchanges are those of the call alone."""
    voice = engine_of(store).voice
    voice._speaking = True
    try:
        yield
    finally:
        voice._speaking = False
        voice.tell(())


@pytest.fixture(autouse=True)
def _never_resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store tells others of its wakes without a pause in between, so that a test need not wait for its end."""
    monkeypatch.setattr(wakes, "_QUIET", 0.0)


_FORGOTTEN = "26000"  # what was prepared: a statement that commits by itself is prepared again

_REFUSALS = {  # by SQLSTATE: whether the error is transient, whether it is retryable
    "53100": (True, False),
    "40001": (False, True),
    "XX000": (False, False),
    _FORGOTTEN: (False, True),
}


async def test_a_verb_whose_nth_statement_the_server_refuses_did_nothing_and_can_be_asked_again(
    world: World, anyio_backend: str
) -> None:
    def check(name: str, about: str, fault: Fault, error: DatabaseError, stands: bool) -> None:
        assert type(error) is DatabaseError, about
        assert (error.transient, error.retryable) == _REFUSALS[fault.code], about
        assert isinstance(error.__cause__, psycopg.Error), about
        assert error.__cause__.sqlstate == fault.code, about
        assert not stands, about

    with anyio.fail_after(_BOUND):
        codes = sorted(_REFUSALS, reverse=anyio_backend == "trio")  # so that an exchange has one on each loop
        await _sweep(world, [Fault("refused", code) for code in codes], check)


# The loops differ in how they wait for an answer.
@pytest.mark.parametrize(
    ("anyio_backend", "kind"),
    [("trio", "unsent"), ("trio", "unanswered"), ("asyncio", "unanswered"), ("asyncio", "torn")],
)
async def test_a_verb_whose_connection_is_cut_at_its_nth_exchange_says_what_is_known_of_it(
    world: World, anyio_backend: str, kind: Kind
) -> None:
    stood = set()

    def check(name: str, about: str, fault: Fault, error: DatabaseError, stands: bool) -> None:
        assert error.__cause__ is not None, about
        assert not error.retryable, about
        if stands:
            stood.add(name)
            assert kind != "unsent", about
        if _CERTAIN.fullmatch(name) or (error.transient and not isinstance(error, CommitUnknown)):
            assert error.transient, about
            assert not isinstance(error, CommitUnknown), about
            assert not stands, about
        else:
            assert isinstance(error, CommitUnknown), about
            assert not error.transient, about

    with anyio.fail_after(_BOUND):
        await _sweep(world, [Fault(kind)], check)
    writes = {name for name in CASES if world.nothing[name] != world.everything[name] and not _CERTAIN.fullmatch(name)}
    assert stood == (set() if kind == "unsent" else writes)


@pytest.mark.parametrize(
    ("anyio_backend", "fault"),
    [
        ("trio", Fault("refused", "53100")),
        ("asyncio", Fault("unsent")),
        ("trio", Fault("unanswered")),
        ("asyncio", Fault("torn")),
    ],
)
async def test_an_opening_whose_nth_exchange_fails_says_so_and_leaves_nothing_behind(
    world: World, anyio_backend: str, fault: Fault
) -> None:
    with anyio.fail_after(_BOUND):
        for n in places("opening"):
            world.drop_new()
            async with balances(f"an opening whose exchange {n} is {fault}", world.books):
                world.wire.fail(n, fault)
                failure = None
                try:
                    async with world.open_new():
                        reached = world.wire.disarm()
                except DatabaseError as error:
                    failure = error
                    reached = world.wire.disarm()
                    assert failure.transient, n
                assert (failure is not None) == reached, n
                async with world.open_new() as store:
                    await works(store)
            if not reached:
                break
        world.drop_new()
    assert n > 10


@pytest.mark.parametrize(
    ("anyio_backend", "faults"),
    [("trio", [Fault("refused", "53100"), Fault("refused", "40001")]), ("asyncio", [Fault("unanswered")])],
)
async def test_whoever_is_hosted_takes_a_passing_failure_in_its_stride_or_says_so(
    world: World, anyio_backend: str, faults: Sequence[Fault]
) -> None:
    clock = HurriedClock()
    turns = cycle(faults)
    with anyio.fail_after(_BOUND):
        async with balances("the store", world.books), world.open(clock) as store:
            await _quiet(store)
            books = world.books_with(store)
            for name, arrangement in HOSTED.items():
                for n in places(name):
                    fault = next(turns)
                    about = f"{name}, whose exchange {n} is {fault}"
                    world.clear(store, clock)
                    async with arrangement(store, clock) as call:
                        await _quiet(store)
                        _forget_plans(store)
                        world.wire.fail(n, fault)
                        failure = None
                        try:
                            await call()
                        except DatabaseError as error:
                            failure = error
                        reached = world.wire.disarm()
                        assert failure is None or name not in PATIENT, about
                        assert failure is None or passes(failure), about
                    if name in PATIENT:
                        assert await store.queue("q").jobs() == await store.outbox("o").jobs() == [], about
                    if not reached:
                        break
                await balanced(lambda: world.books_with(store), books, name)
            world.clear(store, clock)
            await works(store)
