"""What SQLite makes of the catalogue: by which index each statement is led, and that it judges rows as the rules do.

No time is measured: plans are read, and SQLite's own instructions are counted.
"""

import re
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alkstore_trio import JobState
from alkstore_trio import _ops as ops
from alkstore_trio._engines import statements as sql
from alkstore_trio._engines.schema import PREFIX, prefixed
from alkstore_trio._engines.sqlite.file import Session
from alkstore_trio._engines.sqlops import HANDLERS
from alkstore_trio._ops import Op
from alkstore_trio._rules import bounds
from alkstore_trio._rules.queue import JobRow, Slot, slot
from alkstore_trio._rules.stamps import Stamps
from alkstore_trio.schema import script

NOW = 1_000_000.0
HUGE = sys.float_info.max
ROWS = 100_000

STATEMENTS = {name: text for name, text in vars(sql).items() if isinstance(text, str) and text.startswith("\n")}

# ------------------------------------------------------------------------------------------------- a long queue

# What may stand in a queue, each where the engine would have filed it.
_KINDS: dict[str, dict[str, Any]] = {
    "delayed": {"state": 0, "lane": 0, "due": NOW + 60, "run_at": NOW + 60},
    "delayed, expiring": {"state": 0, "lane": 0, "due": NOW + 60, "run_at": NOW + 60, "expires_at": NOW + 90},
    "leased": {"state": 1, "lane": 0, "due": NOW + 30, "attempts": 1, "token": 1, "claim_expires_at": NOW + 30},
    "ready": {"state": 0, "lane": 1},
    "ready, expiring": {"state": 0, "lane": 1, "expires_at": NOW + 90},
    "ready, important": {"state": 0, "lane": 1, "priority": 5},
    "expired": {"state": 0, "lane": 2, "expires_at": NOW - 60},
    "dead": {"state": 2, "lane": 3, "attempts": 3, "died_at": NOW - 60},
    "dead, kept": {"state": 2, "lane": 3, "attempts": 3, "died_at": NOW - 60, "dead_retention": 600.0},
}
_PLAIN: dict[str, Any] = {
    "body": "1",
    "due": NOW - 60,
    "priority": 0,
    "run_at": NOW - 60,
    "expires_at": None,
    "attempts": 0,
    "max_attempts": 3,
    "visibility_timeout": 30.0,
    "base_backoff": 5.0,
    "dead_retention": None,
    "token": 0,
    "claim_expires_at": None,
    "created_at": NOW - 60,
    "died_at": None,
}


def columns(names: list[str]) -> str:
    return f"({', '.join(names)}) values ({', '.join(f':{name}' for name in names)})"


def jobs() -> Iterator[dict[str, Any]]:
    kinds = [_PLAIN | kind for kind in _KINDS.values()]
    for number in range(1, ROWS + 1):
        queue = "q" if number % 10 else f"other {number % 700}"
        # Spread over time, so that an index by it has something to tell apart; none crosses NOW.
        shift = number / ROWS
        row = kinds[number % len(kinds)] | {"id": number, "queue": queue}
        yield row | {name: row[name] + shift for name in ("due", "run_at", "died_at") if row[name] is not None}


def filled() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(script("sqlite"))
    connection.execute("begin")
    names = ["id", "queue", "state", "lane", *_PLAIN]
    connection.executemany(f"insert into {PREFIX}jobs{columns(names)}", jobs())
    connection.executemany(
        f'insert into {PREFIX}events(stream, "offset", body, created_at) values (?, ?, ?, ?)',
        ((f"s{number % 3}", number, "1", NOW) for number in range(1, ROWS // 10)),
    )
    connection.executemany(
        f"insert into {PREFIX}streams(stream, last) values (?, ?)", ((f"s{n}", ROWS) for n in range(3))
    )
    connection.executemany(
        f'insert into {PREFIX}offsets(stream, consumer, "offset") values (?, ?, ?)',
        ((f"s{number % 3}", f"c{number}", number) for number in range(1_000)),
    )
    connection.executemany(
        f"insert into {PREFIX}locks(name, owner, token, expires_at) values (?, ?, ?, ?)",
        ((f"l{number}", "o", number, NOW + 9) for number in range(1_000)),
    )
    schedule = ["name", "spec", "interval", "queue", "body", "priority", "next_at"]
    connection.executemany(
        f"insert into {PREFIX}schedules{columns(schedule)}",
        (
            dict(zip(schedule, (f"x{number}", "@every 1h", 3600.0, "q", "1", 0, NOW + number), strict=True))
            for number in range(1_000)
        ),
    )
    connection.execute("commit")
    return connection


@pytest.fixture(scope="module")
def full() -> Iterator[sqlite3.Connection]:
    """A full store, to be copied: its rows take long to insert."""
    connection = filled()
    yield connection
    connection.close()


@pytest.fixture(scope="module", params=["as it is", "analyzed"])
def long_queue(request: pytest.FixtureRequest, full: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A full store; once with the statistics that an application on the same file may have had SQLite gather."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    full.backup(connection)
    if request.param == "analyzed":
        connection.execute("analyze")
    yield connection
    connection.close()


def plan(connection: sqlite3.Connection, text: str) -> list[str]:
    params = dict.fromkeys(re.findall(r":(\w+)", text))
    rows = connection.execute(f"explain query plan {prefixed(text, PREFIX)}", params)
    return [detail.replace(PREFIX, "") for _, _, _, detail in rows]


# Those that read a whole table, and why they may.
READS_ALL = {
    "SCHEDULES": "gives every schedule",
    "STREAM_NAMES": "gives every stream that has an event or a consumer, and both tables have few rows a stream",
} | {name: "of the wakes only the latest are kept" for name, text in STATEMENTS.items() if "$wakes" in text}

# Whose plan is pinned to the columns of the index: led by the queue alone, many of them would read all of it.
READY = "jobs USING INDEX jobs_ready (queue=?)"
DUE = "jobs USING INDEX jobs_due (queue=? AND due<?)"
ROW = "jobs USING INTEGER PRIMARY KEY (rowid=?)"
EXPIRED = "jobs_expiry (queue=? AND lane=? AND expires_at>? AND expires_at<?)"
UNEXPIRED = "jobs_expiry (queue=? AND lane=? AND expires_at>?)"
LED_BY = {
    "MOVED": [DUE, f"jobs USING COVERING INDEX {EXPIRED}", f"jobs USING COVERING INDEX {UNEXPIRED}"],
    "BURY_SPENT": [DUE],
    "FILE_DUE": [DUE],
    "FILE_EXPIRED": [f"jobs USING INDEX {EXPIRED}"],
    "FILE_UNEXPIRED": [f"jobs USING INDEX {UNEXPIRED}"],
    "FIRST_READY": [READY],
    "CLAIM": [ROW],
    "ACK": [ROW],
    "HELD": [ROW],
    "REFILE": [ROW],
    "REVIVE": [ROW],
    "DELETE": [ROW],
    "GET_JOB": [ROW],
    "DELETE_RETAINED": ["jobs USING INDEX jobs_retention (queue=? AND <expr><?)"],
    "BURY_EXPIRED": [f"jobs USING INDEX {EXPIRED}"],
    "READY_NOW": [READY, DUE, f"jobs USING INDEX {UNEXPIRED}"],
    "NEXT_DUE": ["jobs USING INDEX jobs_due (queue=? AND due>?)"],
    "NEXT_STRAY": [
        "jobs USING INDEX jobs_overdue (queue=? AND due>?)",
        READY,
        f"jobs USING INDEX {UNEXPIRED}",
    ],
    "JOBS": ["jobs USING INDEX jobs_of_queue (queue=? AND id>?)"],
    "JOBS_OF_STATE": ["jobs USING INDEX jobs_of_queue (queue=? AND id>?)"],
    "DEAD_JOBS": ["jobs USING INDEX jobs_dead (queue=? AND id>?)"],
    "COUNT_JOBS": ["jobs USING INDEX jobs_of_queue (queue=?)"],  # it counts every row of the queue
    "QUEUE_NAMES": [
        "jobs USING COVERING INDEX jobs_of_queue",  # the least of all, at its beginning
        "jobs USING COVERING INDEX jobs_of_queue (queue>?)",
    ],
    "READ_SINCE": ["events USING PRIMARY KEY (stream=? AND offset>?)"],
    "TRIM": ["events USING PRIMARY KEY (stream=? AND offset<?)"],
    "STREAM_ENDS": ["events USING PRIMARY KEY (stream=?)"] * 2,
    "CONSUMERS": ["offsets USING PRIMARY KEY (stream=?)"],  # it gives every consumer of the stream
    "DUE_SCHEDULES": ["schedules USING INDEX schedules_next (next_at<?)"],
    "NEXT_SCHEDULE": ["schedules USING COVERING INDEX schedules_next (next_at>?)"],
}


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - READS_ALL.keys()))
def test_a_statement_reads_no_whole_table_and_sorts_nothing(long_queue: sqlite3.Connection, name: str) -> None:
    lines = plan(long_queue, STATEMENTS[name])
    tables = [table for (table,) in long_queue.execute("select name from sqlite_master where type = 'table'")]
    scans = {f"SCAN {table.removeprefix(PREFIX)}" for table in tables}
    assert not [line for line in lines if line in scans or "TEMP B-TREE" in line or "AUTOMATIC" in line]


@pytest.mark.parametrize("name", LED_BY)
def test_a_statement_is_led_by_the_index_that_was_made_for_it(long_queue: sqlite3.Connection, name: str) -> None:
    lines = plan(long_queue, STATEMENTS[name])
    assert [line.removeprefix("SEARCH ") for line in lines if line.startswith(("SEARCH", "SCAN jobs"))] == LED_BY[name]


# What is asked all the time, and how many of SQLite's instructions it may cost: a few times what it does. To read the
# queue would take a million.
COSTS: list[tuple[Op[Any], int]] = [
    (ops.Claim("q", "w", 1), 1_000),
    (ops.Claim("q", "w", 10), 5_000),
    (ops.Claim("no such", "w", 1), 1_000),
    (ops.NextReadyAt("q"), 1_000),
    (ops.NextReadyAt("no such"), 1_000),
    (ops.Ack("q", ((2, 1),)), 1_000),
    (ops.Retry("q", 2, 1, "e", None, 0.5), 1_000),
    (ops.Release("q", ((2, 1),), None), 1_000),
    (ops.Heartbeat("q", ((2, 1),), None), 1_000),
    (ops.Jobs("q", None, 10, 50_000), 1_000),
    (ops.Jobs("q", JobState.DEAD, 10, 50_000), 1_000),
    (ops.ReadSince("s1", 5_000, 10), 1_000),
    (ops.DueSchedules(), 1_000),
    (ops.QueueNames(), 5_000),
]


@pytest.mark.parametrize(("op", "most"), COSTS, ids=[str(op) for op, _ in COSTS])
def test_what_is_asked_all_the_time_costs_no_more_in_a_long_queue(
    long_queue: sqlite3.Connection, op: Op[Any], most: int
) -> None:
    session = Session(long_queue, PREFIX)
    instructions = 0

    def count() -> None:
        nonlocal instructions
        instructions += 1

    long_queue.execute("begin")
    try:
        claim = ops.Claim(getattr(op, "queue", "q"), "w", 1)
        session.run(HANDLERS[ops.Claim](claim, NOW, ()))  # files whatever time has moved
        long_queue.set_progress_handler(count, 1)
        session.run(HANDLERS[type(op)](op, NOW, ()))
    finally:
        long_queue.set_progress_handler(None, 0)
        long_queue.execute("rollback")
    assert 0 < instructions < most


# --------------------------------------------------------------------------------------- where a row stands

FRAGMENTS = {
    Slot.READY: sql.READY,
    Slot.SPENT: sql.SPENT,
    Slot.EXPIRED: sql.EXPIRED,
    Slot.DELAYED: sql.DELAYED,
    Slot.LEASED: sql.LEASED,
    Slot.BURIED: sql.BURIED,
}
_STATES = {JobState.PENDING: 0, JobState.PROCESSING: 1, JobState.DEAD: 2}

# Few instants, so that they are often the same one.
INSTANTS = st.sampled_from([NOW - 1, NOW, NOW + 2**-33, NOW + 1, -HUGE, HUGE]) | st.floats(NOW - 2, NOW + 2)


@st.composite
def rows(draw: st.DrawFn) -> JobRow:
    state = draw(st.sampled_from(JobState))
    claimed = state is JobState.PROCESSING or (state is JobState.DEAD and draw(st.booleans()))
    return JobRow(
        1,
        "q",
        "1",
        Stamps(30.0, draw(st.integers(1, 3)), 5.0, None),
        0,
        draw(INSTANTS),
        draw(st.none() | INSTANTS),
        NOW,
        state,
        attempts=draw(st.integers(0, 4)),
        claim_expires_at=draw(INSTANTS) if claimed else None,
        died_at=NOW if state is JobState.DEAD else None,
    )


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(script("sqlite"))
    yield connection
    connection.close()


def add(connection: sqlite3.Connection, row: JobRow, lane: int) -> None:
    connection.execute(f"delete from {PREFIX}jobs")
    names = ["id", "queue", "state", "lane", *_PLAIN]
    connection.execute(
        f"insert into {PREFIX}jobs{columns(names)}",
        _PLAIN
        | {
            "id": row.id,
            "queue": row.queue,
            "state": _STATES[row.state],
            "lane": lane,
            "due": row.run_at if row.claim_expires_at is None else row.claim_expires_at,
            "run_at": row.run_at,
            "expires_at": row.expires_at,
            "attempts": row.attempts,
            "max_attempts": row.stamps.max_attempts,
            "visibility_timeout": row.stamps.visibility_timeout,
            "claim_expires_at": row.claim_expires_at,
            "died_at": row.died_at,
        },
    )


def test_every_slot_of_a_row_has_its_fragment() -> None:
    assert set(FRAGMENTS) == set(Slot) - {Slot.GONE}


@given(row=rows(), now=INSTANTS)
def test_the_one_fragment_that_is_true_of_a_row_is_that_of_its_slot(
    empty: sqlite3.Connection, row: JobRow, now: float
) -> None:
    add(empty, row, lane=0)
    judged = ", ".join(f"({fragment})" for fragment in FRAGMENTS.values())
    [answers] = empty.execute(f"select {judged} from {PREFIX}jobs", {"now": now}).fetchall()
    # 0 and not null of all the others, as a statement may ask for the contrary.
    assert dict(zip(FRAGMENTS, answers, strict=True)) == {where: int(where is slot(row, now)) for where in FRAGMENTS}


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(now=FINITE.filter(lambda now: now < HUGE), seconds=FINITE.filter(lambda seconds: seconds > 0))
@example(now=1.7e9, seconds=sys.float_info.min)
@example(now=1.7e9, seconds=HUGE)
@example(now=1e308, seconds=1e308)
@example(now=-HUGE, seconds=5e-324)
def test_a_claim_ends_when_the_rules_say(empty: sqlite3.Connection, now: float, seconds: float) -> None:
    add(empty, JobRow(1, "q", "1", Stamps(seconds, 1, 5.0, None), 0, now, None, now), lane=1)
    session = Session(empty, PREFIX)
    claims: list[JobRow] = session.run(HANDLERS[ops.Claim](ops.Claim("q", "w", 1), now, ()))
    kept = session.run(HANDLERS[ops.GetJob](ops.GetJob("q", 1), now, ()))
    ends = bounds.deadline(now, seconds)
    assert [row.claim_expires_at for row in [*claims, kept]] == [ends, ends]
    assert empty.execute(f"select due from {PREFIX}jobs").fetchall() == [(ends,)]
    assert slot(claims[0], now) is Slot.LEASED
