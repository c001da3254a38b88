"""What Postgres makes of the statements: by which index each is led, and that they reckon and judge as the rules do.

No time is measured: plans are read, and pages are counted. The long queue has 200,000 rows, since a million take half a
minute to be made; what a plan reads is told by its conditions, and the budgets in pages are far below a whole queue.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import anyio
import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.rows import tuple_row

from alkstore_trio import JobState, open_postgres
from alkstore_trio import _ops as ops
from alkstore_trio._engines import reads
from alkstore_trio._engines import statements as common
from alkstore_trio._engines.postgres import sqlops
from alkstore_trio._engines.postgres import statements as own
from alkstore_trio._engines.postgres.statements import compiled
from alkstore_trio._ops import Op
from alkstore_trio._rules import backoff, bounds
from alkstore_trio._rules.queue import JobRow, Slot, slot
from alkstore_trio._rules.stamps import Stamps
from alkstore_trio.schema import script
from tests.servers import Server

NOW = 1_000_000.0
HUGE = sys.float_info.max
ROWS = 1_000_000
SCHEMA = '"alkstore"'

# All that the engine sends: its own, and those of the catalogue that its ops name.
STATEMENTS = {
    name: text
    for name, text in vars(own).items()
    if isinstance(text, str) and text.startswith("\n") and not name.startswith("_")
} | {
    name: getattr(common, name)
    for module, used in ((sqlops, r"common\.([A-Z_]+)"), (reads, r"sql\.([A-Z_]+)"))
    for name in re.findall(used, inspect.getsource(module))
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that gathers statistics when it is told to."""
    with Server(settings={"autovacuum": "off"}) as server:
        yield server


def connected(server: Server) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection that plans as the engine's own do."""
    connection: psycopg.Connection[tuple[Any, ...]] = psycopg.Connection.connect(
        server.dsn, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.ClientCursor
    )
    connection.execute("set plan_cache_mode = force_generic_plan")
    connection.execute("set jit = off")
    return connection


# ------------------------------------------------------------------------------------------------- a long queue

# Each kind where the engine would have filed it, spread over time, so that an index by it has something to tell apart;
# none crosses NOW.
_FILL = f"""
insert into alkstore.jobs(id, queue_hash, queue, body, state, lane, due, priority, run_at, expires_at, attempts,
 max_attempts, visibility_timeout, base_backoff, dead_retention, claim_expires_at, token, created_at, died_at)
select n, hashtextextended(queue, 0), queue, '1', state, lane, due + n * 1e-6,
 priority, run_at + n * 1e-6, expires_at, attempts, 3, 30, 5, dead_retention, claim_expires_at + n * 1e-6, attempts, 0,
 died_at + n * 1e-6
from generate_series(1, {ROWS}) as n
cross join lateral (select case when mod(n, 10) = 0 then 'other ' || mod(n, 700) else 'q' end as queue) as named
join (values
 (0, 0, 0, 1000060, 0, 1000060, null, 0, null, null, null),  -- delayed
 (1, 0, 0, 1000060, 0, 1000060, 1000090, 0, null, null, null),
 (2, 1, 0, 1000030, 0, 999940, null, 1, 1000030, null, null),  -- leased
 (3, 0, 1, 999940, 0, 999940, null, 0, null, null, null),  -- ready
 (4, 0, 1, 999940, 0, 999940, 1000090, 0, null, null, null),
 (5, 0, 1, 999940, 5, 999940, null, 0, null, null, null),
 (6, 0, 2, 999940, 0, 999940, 999940, 0, null, null, null),  -- expired
 (7, 2, 3, 999940, 0, 999940, null, 3, null, 999940, null),  -- dead
 (8, 2, 3, 999940, 0, 999940, null, 3, null, 999940, 600)
) as kinds(kind, state, lane, due, priority, run_at, expires_at, attempts, claim_expires_at, died_at, dead_retention)
 on kind = mod(n, 9);
select setval('alkstore.jobs_id_seq', {ROWS});
insert into alkstore.events(stream, "offset", body, created_at)
select 's' || mod(n, 3), n, '1', 0 from generate_series(1, 50000) as n;
insert into alkstore.streams(stream, last) select 's' || n, 50000 from generate_series(0, 2) as n;
insert into alkstore.offsets(stream, consumer, "offset")
select 's' || mod(n, 3), 'c' || n, n from generate_series(1, 1000) as n;
insert into alkstore.locks(name, owner, token, expires_at)
select 'l' || n, 'o', n, 1000009 from generate_series(1, 1000) as n;
insert into alkstore.schedules(name, spec, interval, queue, body, priority, next_at)
select 'x' || n, '@every 1h', 3600, 'q', '1', 0, 1000000 + n from generate_series(1, 1000) as n;
"""


@pytest.fixture(scope="module")
def long_queue(server: Server) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A full store."""
    with connected(server) as connection:
        connection.execute(script("postgres"))
        connection.execute(_FILL)
        connection.execute("analyze")
        yield connection
        connection.execute("drop schema alkstore cascade")


Node = dict[str, Any]


def explained(
    connection: psycopg.Connection[tuple[Any, ...]], text: str, params: dict[str, Any], how: str, schema: str = SCHEMA
) -> Node:
    """The plan of a statement that is prepared as the engine does it."""
    prepared, names = compiled(text, schema)
    arguments = f"({', '.join(['%s'] * len(names))})" if names else ""
    connection.execute(f"prepare it as {prepared}")
    try:
        connection.execute("begin")
        values = [params.get(name) for name in names]
        [(plans,)] = connection.execute(f"explain ({how}, format json) execute it{arguments}", values or None)
    finally:
        connection.execute("rollback")
        connection.execute("deallocate it")
    plan: Node = plans[0]["Plan"]
    return plan


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans(plan: Node) -> list[str]:
    """What of the tables is read whole."""
    return [node["Relation Name"] for node in nodes(plan) if node["Node Type"].endswith("Seq Scan")]


def sorts(plan: Node) -> list[list[str]]:
    """The keys by which rows of tables are put in order; a claim's own few may be."""
    return [
        node["Sort Key"]
        for node in nodes(plan)
        if "Sort" in node["Node Type"] and any("Relation Name" in below for below in nodes(node))
    ]


def led_by(plan: Node) -> list[str]:
    """The indexes of jobs and events, each with the columns that it is asked for."""
    columns = ("queue_hash", "lane", "priority", "run_at", "due", "expires_at", "died_at", "id", "stream", "offset")
    return sorted(
        f"{node['Index Name']}({', '.join(column for column in columns if column in words)})"
        for node in nodes(plan)
        if node.get("Index Name", "").startswith(("jobs", "events"))
        for words in [re.findall(r"\w+", node.get("Index Cond", ""))]
    )


# Those that read a whole table of few rows, or the server's own.
READS_ALL = {
    "SCHEDULES": "gives every schedule",
    "DUE_SCHEDULES": "how many are due is not known to a plan, and schedules are few",
    "STREAM_NAMES": "gives every stream, but of its events only whether there are any",
    "STREAM_STATISTICS": "gives every consumer of the stream",
    "FORGET_LOCKS": "goes once in a thousand locks",
    "STORE": "one row",
    "DEAD_ROWS": "the server's statistics",
    "OLD_SNAPSHOTS": "the server's sessions",
    "WRITERS": "the server's sessions",
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_reads_no_whole_table_and_sorts_nothing(
    long_queue: psycopg.Connection[tuple[Any, ...]], name: str
) -> None:
    plan = explained(long_queue, STATEMENTS[name], {}, "costs")
    whole = scans(plan)
    assert "jobs" not in whole
    assert "events" not in whole
    if name not in READS_ALL:
        assert not whole
        assert not sorts(plan)


ROW = ["jobs_pkey(queue_hash, id)"]
_MOVED = [*["jobs_due(queue_hash, due)"] * 2, *["jobs_expiry(queue_hash, lane, expires_at)"] * 2]
_BEHIND = "jobs_ready(queue_hash, priority, run_at, id)"
LED_BY: dict[str, list[str]] = {
    "ACK": ROW,
    "FAIL": ROW,
    "RETRY": ROW,
    "RELEASE": ROW,
    "HEARTBEAT": ROW,
    "GET_JOB": ROW,
    "REVIVE": ROW,
    "DELETE": ROW,
    "ACK_TOGETHER": ROW,
    "RELEASE_TOGETHER": ROW,
    "HEARTBEAT_TOGETHER": ROW,
    "JOBS": ROW,
    "JOBS_OF_STATE": ROW,
    "DEAD_JOBS": ["jobs_dead(queue_hash, id)"],
    "COUNT_JOBS": ["jobs_pkey(queue_hash)"],  # it counts every row of the queue
    "SWEEP": ["jobs_expiry(queue_hash, lane, expires_at)", "jobs_retention(queue_hash, died_at)"],
    "READ_SINCE": ["events_pkey(stream, offset)"],
    "READ_FROM_CONSUMER": ["events_pkey(stream, offset)"],
    "TRIM": ["events_pkey(stream, offset)"],
    "CLAIM": sorted([*_MOVED, "jobs_ready(queue_hash)", "jobs_ready(queue_hash)", *ROW, *ROW]),
    "CLAIM_BEHIND": sorted([*_MOVED, _BEHIND, _BEHIND, *ROW, *ROW]),
}


@pytest.mark.parametrize("name", LED_BY)
def test_a_statement_is_led_by_the_index_that_was_made_for_it(
    long_queue: psycopg.Connection[tuple[Any, ...]], name: str
) -> None:
    assert led_by(explained(long_queue, STATEMENTS[name], {}, "costs")) == LED_BY[name]


_EXPIRED = """
insert into alkstore.jobs(queue_hash, queue, body, state, lane, due, priority, run_at, expires_at, max_attempts,
 visibility_timeout, base_backoff, created_at)
select hashtextextended('expired', 0), 'expired', '1', 0, 1, 0, 0, 0, 999999, 3, 30, 5, 0 from generate_series(1, 1000)
"""


def test_a_claim_that_files_what_time_has_moved_looks_for_nothing_that_is_ready(
    long_queue: psycopg.Connection[tuple[Any, ...]],
) -> None:
    long_queue.execute(_EXPIRED)
    try:
        text, params = next(sqlops.HANDLERS[ops.Claim](ops.Claim("expired", "w", 1), NOW))
        plan = explained(long_queue, text, dict(params), "analyze, timing off")
    finally:
        long_queue.execute("delete from alkstore.jobs where queue = 'expired'")
    executed = [node["Index Name"] for node in nodes(plan) if node["Actual Loops"] and "Index Name" in node]
    assert "jobs_expiry" in executed
    assert "jobs_ready" not in executed


_MANY = """
insert into "many".jobs(queue_hash, queue, body, state, lane, due, priority, run_at, attempts, max_attempts,
 visibility_timeout, base_backoff, created_at)
select hashtextextended(queue, 0), queue, '1', 0, 1, n, 0, n, 0, 9, 30, 5, 0
from generate_series(1, {rows}) as n, lateral (select 'q' || mod(n, {queues}) as queue) as named
"""


@pytest.mark.parametrize(("rows", "queues", "ours"), [(9_600, 64, False), (20_000, 2_000, True)])
def test_no_queue_is_sorted_however_many_there_are(server: Server, rows: int, queues: int, ours: bool) -> None:
    with connected(server) as connection:
        connection.execute(script("postgres", "many"))
        try:
            connection.execute(_MANY.format(rows=rows, queues=queues))
            connection.execute('vacuum analyze "many".jobs')
            if ours:  # not behind a pooler
                _set_as_the_engine_does(connection)
            for name in ("CLAIM", "CLAIM_BEHIND", "JOBS", "NEXT_READY"):
                assert not sorts(explained(connection, STATEMENTS[name], {}, "costs", '"many"')), name
        finally:
            connection.execute('drop schema "many" cascade')


# What is asked all the time, and how many pages it may touch: a few times what it does. The queue has 41,000.
COSTS: list[tuple[Op[Any], int]] = [
    (ops.Enqueue("q", ("1",), Stamps(30.0, 3, 5.0, None), None, None, 0, None), 200),
    (ops.Claim("q", "w", 1), 200),
    (ops.Claim("q", "w", 10), 800),
    (ops.Claim("no such", "w", 1), 100),
    (ops.NextReadyAt("q"), 200),
    (ops.NextReadyAt("no such"), 100),
    (ops.Ack("q", ((2, 1),)), 100),
    (ops.Retry("q", 2, 1, "e", None, 0.5), 300),
    (ops.Release("q", ((2, 1),), None), 300),
    (ops.Heartbeat("q", ((2, 1),), None), 300),
    (ops.GetJob("q", 2), 50),
    (ops.Jobs("q", None, 10, 50_000), 100),
    (ops.Jobs("q", JobState.DEAD, 10, 50_000), 100),
    (ops.ReadSince("s1", 5_000, 10), 100),
    (ops.ReadFromConsumer("s1", "c1", 10), 100),
    (ops.Publish("s1", None, ("1",)), 100),
    (ops.SaveOffset("s1", "c1", 20_000), 100),
    (ops.DueSchedules(), 100),
    (ops.QueueNames(), 3_000),  # 71 of them
]


@pytest.mark.parametrize(("op", "most"), COSTS, ids=[f"{type(op).__name__}-{n}" for n, (op, _) in enumerate(COSTS)])
def test_what_is_asked_all_the_time_costs_no_more_in_a_long_queue(
    long_queue: psycopg.Connection[tuple[Any, ...]], op: Op[Any], most: int
) -> None:
    text, params = next(sqlops.HANDLERS[type(op)](op, NOW))
    plan = explained(long_queue, text, dict(params), "analyze, buffers, timing off")
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < most


# Where the table has no rows, and the server knows it: any plan would do then. But a plan is kept until the next vacuum
# or statistics, and those come a minute after 2,000 rows have died or 50,000 were added.
BURSTS = [
    "ACK",
    "ACK_TOGETHER",
    "CLAIM",
    "CLAIM_BEHIND",
    "GET_JOB",
    "HEARTBEAT",
    "NEXT_READY",
    "READ_SINCE",
    "RETRY",
    "SWEEP",
]


@pytest.mark.parametrize("name", BURSTS)
def test_a_plan_of_an_empty_queue_is_good_for_the_burst_that_comes(server: Server, name: str) -> None:
    with connected(server) as connection:
        connection.execute(script("postgres", "drained"))
        connection.execute('vacuum analyze "drained".jobs, "drained".events')
        _set_as_the_engine_does(connection)
        try:
            plan = explained(connection, STATEMENTS[name], {}, "costs", '"drained"')
        finally:
            connection.execute('drop schema "drained" cascade')
    assert not scans(plan)


def _set_as_the_engine_does(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """What it sets for its own connections besides."""
    from alkstore_trio._engines.postgres import server

    for setting in re.findall(r"set_config\('(enable_\w+)', 'off', false\)", inspect.getsource(server)):
        connection.execute(f"set {setting} = off")


# --------------------------------------------------------------------------------------- where a row stands

FRAGMENTS = {
    Slot.READY: common.READY,
    Slot.SPENT: common.SPENT,
    Slot.EXPIRED: common.EXPIRED,
    Slot.DELAYED: common.DELAYED,
    Slot.LEASED: common.LEASED,
    Slot.BURIED: common.BURIED,
}
_STATES = {JobState.PENDING: 0, JobState.PROCESSING: 1, JobState.DEAD: 2}
_INSTANTS = [NOW - 1, NOW, NOW + 2**-33, NOW + 1, -HUGE, HUGE]


@pytest.fixture(scope="module")
def calculator(server: Server) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection that reckons."""
    with psycopg.Connection.connect(server.dsn, autocommit=True, row_factory=tuple_row) as connection:
        yield connection


def judged_row(state: JobState, run_at: float, expires: float | None, claim: float | None, attempts: int) -> JobRow:
    return JobRow(
        1,
        "q",
        "1",
        Stamps(30.0, 2, 5.0, None),
        0,
        run_at,
        expires,
        NOW,
        state,
        attempts=attempts,
        claim_expires_at=claim,
        died_at=NOW if state is JobState.DEAD else None,
    )


def every_row() -> Iterator[JobRow]:
    """All there may be, at few instants, so that they are often the same one."""
    random = Random(1)
    near = [*_INSTANTS, *(NOW + random.uniform(-2, 2) for _ in range(3))]
    for run_at, expires, attempts in product(near, [None, *near], [0, 1, 2, 3]):
        yield judged_row(JobState.PENDING, run_at, expires, None, attempts)
        for claim in _INSTANTS:
            yield judged_row(JobState.PROCESSING, run_at, expires, claim, attempts)
            yield judged_row(JobState.DEAD, run_at, expires, claim, attempts)


def test_every_slot_of_a_row_has_its_fragment() -> None:
    assert set(FRAGMENTS) == set(Slot) - {Slot.GONE}


@pytest.mark.parametrize("now", _INSTANTS)
def test_the_one_fragment_that_is_true_of_a_row_is_that_of_its_slot(
    calculator: psycopg.Connection[tuple[Any, ...]], now: float
) -> None:
    rows = list(every_row())
    judged = ", ".join(f"({fragment})".replace(":now", "%(now)s::float8") for fragment in FRAGMENTS.values())
    columns = {
        "states": [_STATES[row.state] for row in rows],
        "runs": [row.run_at for row in rows],
        "expiries": [row.expires_at for row in rows],
        "claims": [row.claim_expires_at for row in rows],
        "attempts": [row.attempts for row in rows],
        "now": now,
    }
    answers = calculator.execute(
        f"""select {judged} from unnest(%(states)s::int2[], %(runs)s::float8[], %(expiries)s::float8[],
         %(claims)s::float8[], %(attempts)s::int8[]) with ordinality
         as rows(state, run_at, expires_at, claim_expires_at, attempts, number),
         (values (2::int8)) as stamps(max_attempts)
         order by number""",
        columns,
    ).fetchall()
    # False and not null of all the others, as a statement may ask for the contrary.
    assert answers == [tuple(where is slot(row, now) for where in FRAGMENTS) for row in rows]


# --------------------------------------------------------------------------------------------- what is reckoned

FARTHEST, NEAREST = 1e290, 1e-290  # of a clock that is given, as the engine hands it on
NOWS = st.just(0.0) | st.floats(-FARTHEST, FARTHEST).filter(lambda now: abs(now) > NEAREST) | st.floats(1.0, 4e9)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = FINITE.filter(lambda seconds: seconds > 0)


def reckoned(connection: psycopg.Connection[tuple[Any, ...]], what: str, *columns: list[Any]) -> list[float]:
    """An expression over rows of the columns a, b, c, bit by bit."""
    kinds = ["int8" if column and isinstance(column[0], int) else "float8" for column in columns]
    arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
    names = ", ".join("abc"[: len(columns)])
    rows = connection.execute(
        f"select {what} from unnest({arrays}) with ordinality as rows({names}, n) order by n", columns, binary=True
    ).fetchall()
    return [value for (value,) in rows]


def exact(values: list[float]) -> list[str]:
    return [float(value).hex() for value in values]


@given(st.lists(st.tuples(NOWS, POSITIVE), min_size=1, max_size=60))
@example([(1.7e9, sys.float_info.min), (1.7e9, 5e-324), (1.7e9, HUGE), (0.0, 5e-324), (FARTHEST, HUGE)])
@example([(-FARTHEST, 5e-324), (-1.0, 5e-324), (-(2.0**30), 2.0**-60), (2.0**30, 2.0**-60), (2.0**31 - 2**-22, 1e-99)])
@example([(FARTHEST, 1.0), (-FARTHEST, HUGE), (2 * NEAREST, 5e-324), (-2 * NEAREST, 5e-324)])
def test_a_lease_ends_when_the_rules_say(
    calculator: psycopg.Connection[tuple[Any, ...]], pairs: list[tuple[float, float]]
) -> None:
    expression = own._deadline("b").replace(":now", "a")
    answers = reckoned(calculator, expression, *map(list, zip(*pairs, strict=True)))
    assert exact(answers) == exact([bounds.deadline(now, seconds) for now, seconds in pairs])


@given(st.lists(st.tuples(NOWS, FINITE), min_size=1, max_size=60))
@example([(FARTHEST, HUGE), (-FARTHEST, -HUGE), (FARTHEST, -HUGE), (0.0, 5e-324), (1.7e9, -HUGE), (1.7e9, -1.7e9)])
def test_a_boundary_is_where_the_rules_say(
    calculator: psycopg.Connection[tuple[Any, ...]], pairs: list[tuple[float, float]]
) -> None:
    answers = reckoned(calculator, "a + b", *map(list, zip(*pairs, strict=True)))
    assert exact(answers) == exact([bounds.shifted(now, seconds) for now, seconds in pairs])


JITTER = st.integers(0, 2**53).map(lambda n: n / 2**53)  # as it is drawn
BASES = st.sampled_from([0.0, 1.0, 5.0, 86_400.0, 86_401.0, HUGE, 0.1]) | st.floats(1e-260, HUGE)
ATTEMPTS = st.integers(1, 80) | st.sampled_from([900, 901, 902, 1_100, 1_101, 1_102, 2_000, 2**31, 2**63 - 1])


@given(st.lists(st.tuples(BASES, ATTEMPTS, JITTER), min_size=1, max_size=60))
@example([(5.0, n, 0.3) for n in range(1, 60)])
@example([(1e-260, n, 2**-53) for n in (1, 500, 899, 900, 901, 902)])
def test_the_retry_curve_is_the_rules(
    calculator: psycopg.Connection[tuple[Any, ...]], rows: list[tuple[float, int, float]]
) -> None:
    expression = own._CURVE.replace("base_backoff", "a").replace("attempts", "b").replace(":jitter", "c")
    answers = reckoned(calculator, expression, *map(list, zip(*rows, strict=True)))
    assert exact(answers) == exact([backoff.delay(*row) for row in rows])


@pytest.mark.parametrize("base", [5e-324, 1e-300, 0.99e-290, 1e-290, 1e-280, HUGE])
@pytest.mark.parametrize("attempts", [1, 2, 1_000, 2**63 - 1])
def test_a_curve_out_of_all_reason_is_still_one(
    calculator: psycopg.Connection[tuple[Any, ...]], base: float, attempts: int
) -> None:
    """The server raises where a product underflows; a delay far below a nanosecond is as good as none."""
    expression = own._CURVE.replace("base_backoff", "a").replace("attempts", "b").replace(":jitter", "c")
    for jitter in (0.0, 2.0**-53, 1.0):
        [answer] = reckoned(calculator, expression, [base], [attempts], [jitter])
        assert 0 <= answer <= 86_400
        assert base < 1 or answer == backoff.delay(base, attempts, jitter)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("now", [HUGE, -HUGE, 1e300, 5e-324, -5e-324, 1e-300, 0.0, NEAREST, 2**63, -(2**63)])
def test_no_clock_is_too_far_off_for_a_verb(server: Server, now: float, backend: str) -> None:
    async def verbs() -> None:
        async with open_postgres(server.dsn, schema="far off", clock=lambda: now) as store:
            queue = store.queue("q", visibility_timeout=HUGE, base_backoff=HUGE, dead_retention=HUGE)
            for delay, expires in ((None, None), (-HUGE, None), (HUGE, None), (None, HUGE), (None, -HUGE)):
                await queue.enqueue(1, delay=delay, expires=expires)
            first, second, third = await queue.claim_batch("w", 10)
            assert await first.heartbeat(HUGE)
            assert await first.heartbeat(5e-324)
            assert await first.retry("again")
            assert await second.fail("no")
            assert await third.release(-HUGE)
            assert await queue.next_ready_at() is not None
            await queue.sweep_expired()
            await queue.statistics()
            await queue.revive([second.job.id])
            assert await queue.delete([job.id for job in await queue.jobs()]) == 5
            lock = await store.try_lock("l", "o", 5e-324)
            assert lock is not None
            assert await lock.renew(HUGE)
            assert await lock.release()
            await store.schedule("s", "@every 3650d", "q", 1)
            assert await store.unschedule("s")
            await store.stream("s").publish(1)
            await store.stream("s").trim_to(10**30)

    anyio.run(verbs, backend=backend)
