"""Makes the stored databases of today's schema version: ``python -m tests.upgrades.make``.

Run it once, when a version of the schema is released, and commit what it adds: a folder of that number with a dump of
each SQL engine and `stored.json`, which says what is in them, as the store of that day read it, and what is to become
of it. It never changes a folder that is there, and neither may anybody else: databases like these are in use.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import attrs
import psycopg
from psycopg import sql

from alkstore_trio import JobState, Store, open_postgres, open_sqlite
from alkstore_trio._engines.schema import VERSION
from alkstore_trio.schema import script
from alkstore_trio.testing import ManualClock
from tests.servers import running

__all__ = ["FOLDER", "SCHEMA", "dump_of_postgres", "dump_of_sqlite", "snapshot"]

FOLDER = Path(__file__).parent
SCHEMA = "stored"  # that a dump of Postgres makes, in double quotes throughout

_BEGAN = 1_700_000_000.0  # unix seconds
_OUTBOX = "__alkstore_outbox:"
_ALL = 1_000  # more than there is of anything
_ODD = {"note": "odd", "é💡\0": ["it's", 'a "b" \\ 100% %s $1', "\u2028", 2**70, -0.0, 0.1, 1e300, None, True, {}, []]}

# What a claim of everything takes, in its order: by priority, then by when it was due, then by id.
_CLAIMED = [
    "most urgent",
    "urgent",
    "lapsed",
    "due in the past",
    "revived",
    "plain",
    "expiring",
    "odd",
    "retried",
    "least urgent",
]


def _note(text: str) -> dict[str, str]:
    return {"note": text}


async def _fill(store: Store, clock: ManualClock) -> dict[str, Any]:
    """Put a little of everything into an empty store. The tokens of what is held."""
    tokens: dict[str, Any] = {"claims": {}, "locks": {}}
    own = {"visibility_timeout": 60.5, "max_attempts": 4, "base_backoff": 2.25, "dead_retention": 3600.125}
    mail, plain = store.queue("mail", **own), store.queue("mail")  # type: ignore[arg-type]  # of one type each
    brief = store.queue("mail", visibility_timeout=0.5, max_attempts=2, base_backoff=0, dead_retention=1e9)

    async def claimed(worker: str, queue: Any, note: str, **options: Any) -> Any:
        """A claim of a new job, while nothing else is ready."""
        job_id = await queue.enqueue(_note(note), **options)
        handle = await queue.claim(worker)
        assert handle.job.id == job_id
        return handle

    # What takes time to come about
    await claimed("worker-1", brief, "spent and buried", max_attempts=1)
    await mail.enqueue(_note("expired and buried"), expires=0.5)
    clock.advance(1)
    assert await mail.claim("worker-1") is None
    assert await mail.sweep_expired() == 1

    # What was claimed
    live = await claimed("worker-1", mail, "live")
    assert await live.heartbeat(100_000)
    twice = await claimed("worker-2 é", plain, "claimed twice", priority=3)
    assert await twice.release()
    twice = await plain.claim("worker-2 é")
    assert twice is not None
    assert await twice.heartbeat(100_000)
    lapsed = await claimed("worker-3", brief, "lapsed", priority=7)
    spent = await claimed("worker-3", brief, "spent", max_attempts=1)
    for handle in (live, twice, lapsed, spent):
        tokens["claims"][handle.job.payload["note"]] = [handle.job.id, handle._row.token]
    assert await (await claimed("worker-1", mail, "failed")).fail('ValueError: it\'s "broken" é💡\n100% \\ of it')
    assert await (await claimed("worker-1", plain, "exhausted", max_attempts=1)).retry("TimeoutError: slow")
    revived = await claimed("worker-1", mail, "revived", expires=10_000)
    assert await revived.fail("no")
    assert await (await claimed("worker-1", mail, "retried")).retry("ValueError: not yet", 0.25)
    assert await (await claimed("worker-1", plain, "retried later")).retry("ValueError: later", 5_000.5)
    assert await (await claimed("worker-1", plain, "released")).release(5_000)
    assert await (await claimed("worker-1", plain, "gone")).ack()

    # What waits
    assert await mail.revive([revived.job.id]) == 1
    await plain.enqueue(_note("plain"))
    await mail.enqueue(_note("least urgent"), priority=-(2**63))
    await mail.enqueue(_note("most urgent"), priority=2**63 - 1)
    await plain.enqueue(_note("urgent"), priority=10)
    await mail.enqueue(_note("delayed"), delay=3600.25)
    await plain.enqueue(_note("due in the past"), run_at=_BEGAN - 100.5)
    await plain.enqueue(_note("due in the far future"), run_at=1e300)
    await mail.enqueue(_note("expiring"), expires=7200.5)
    await mail.enqueue(_note("expired"), expires=0.125, priority=20)
    await plain.enqueue(_ODD)
    await store.queue('it\'s 100% "odd" é💡').enqueue(None)

    webhooks = store.outbox("webhooks")
    await webhooks.enqueue(_note("refused"))
    assert await webhooks.run_once("courier", lambda handle: handle.fail("410 Gone"))
    await webhooks.enqueue(_note("hook"), priority=1)
    await webhooks.enqueue(_note("later"), delay=100_000)

    orders = store.stream("orders")
    await orders.publish_many([_note("one"), _note("two")])
    clock.advance(0.25)
    await orders.publish_with_key("customer-7", _note("three"))
    await orders.publish_with_key("it's é💡", _ODD)
    assert await orders.save_offset("billing", 3)
    assert await orders.save_offset("it's é💡", 4)
    trimmed, emptied = store.stream("trimmed"), store.stream("emptied")
    await trimmed.publish_many(range(6))
    assert await trimmed.trim_to(4) == 4
    await emptied.publish_many(range(3))
    assert await emptied.save_offset("c", 2)
    assert await emptied.trim_to(3) == 3
    assert await store.stream("only saved").save_offset("c", 2**63 - 1)

    for name, owner, ttl in [("held", "replica-1", 1e6), ("lapsed", "replica-2", 1), ("taken over", "replica-1", 1)]:
        lock = await store.try_lock(name, owner, ttl)
        assert lock is not None
        tokens["locks"][name] = [owner, lock.token]
    released = await store.try_lock("released", "replica-1", 1e6)
    assert released is not None
    assert await released.release()

    await store.schedule(
        "nightly", "@every 1d", "reports", _note("nightly"), priority=5, expires=3600.5, max_attempts=7
    )
    await store.schedule("minutely", "\t@every  60s ", "ticks", _ODD)

    clock.advance(150)  # two boundaries of the latter are past, and what was claimed for half a second has lapsed
    taker = await store.try_lock("taken over", "replica-2", 1e6)
    assert taker is not None
    tokens["locks"]["taken over, now"] = ["replica-2", taker.token]
    return tokens


def _becomes(stored: dict[str, Any]) -> dict[str, Any]:
    """What today's and any later code is to make of it, some of it at the very instant of the dump."""
    jobs = [job for queue in stored["queues"].values() for job in queue["jobs"]]
    return {
        "claimed": _CLAIMED,
        "buried at the first claim": ["spent"],
        "swept an hour later": {"deleted": ["expired and buried", "failed"], "buried": ["expired"]},
        "next job id": max(job["id"] for job in jobs) + 1,
        "next offsets": {"orders": 5, "trimmed": 7, "emptied": 4, "only saved": 1},
        "fires": {"ticks": 2},
        "next boundaries": {"minutely": _BEGAN + 1.25 + 180, "nightly": _BEGAN + 1.25 + 86_400},
    }


async def snapshot(store: Store) -> dict[str, Any]:
    """Every field of all that the public verbs show, as JSON has it."""
    queues, streams = {}, {}
    for name in await store.queues():
        outbox = name.removeprefix(_OUTBOX)
        if outbox == name:
            queue = store.queue(name)
            jobs, ready_at = await queue.jobs(limit=_ALL), await queue.next_ready_at()
            queues[name] = {"jobs": _plain(jobs), "statistics": _plain(await queue.statistics()), "ready": ready_at}
        else:
            jobs, counts = await store.outbox(outbox).jobs(limit=_ALL), await store.outbox(outbox).statistics()
            queues[name] = {"jobs": _plain(jobs), "statistics": _plain(counts)}
    for name in await store.streams():
        stream = store.stream(name)
        events, statistics = await stream.read_since(0, _ALL), await stream.statistics()
        streams[name] = {"events": _plain(events), "statistics": _plain(statistics)}
    return {"queues": queues, "streams": streams, "schedules": _plain(await store.schedules())}


def _plain(values: Any) -> Any:
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return attrs.asdict(
        values,
        filter=lambda field, _: field.init,  # not the decoded payload, of which the body is the text
        value_serializer=lambda _, __, value: value.value if isinstance(value, JobState) else value,
    )


# The dumps


def dump_of_sqlite(path: str | Path) -> str:
    """The statements that make what is in a file."""
    with closing(sqlite3.connect(path)) as connection:
        return "".join(f"{line}\n" for line in connection.iterdump())


def dump_of_postgres(dsn: str, schema: str = SCHEMA) -> str:
    """The statements that make what is in a schema: our own script, and then what it has come to hold."""
    place = sql.Identifier(schema)
    lines: list[str | sql.Composable] = [script("postgres", schema), sql.SQL("delete from {}.schema;\n").format(place)]
    with psycopg.Connection.connect(dsn) as connection:
        tables = connection.execute(
            "select table_name, array_agg(column_name::text order by ordinal_position) from information_schema.columns"
            " where table_schema = %s and table_name in (select relname from pg_class where relkind = 'r')"
            " group by 1 order by 1",
            [schema],
        ).fetchall()
        for table, columns in tables:
            target, names = sql.Identifier(schema, table), sql.SQL(", ").join(map(sql.Identifier, columns))
            for row in connection.execute(
                sql.SQL("select {0} from {1} order by ({0})").format(names, target)
            ).fetchall():
                values = sql.SQL(", ").join(map(sql.Literal, row))
                lines.append(sql.SQL("insert into {}({}) values ({});\n").format(target, names, values))
        for name, last in connection.execute(
            "select sequencename, last_value from pg_sequences where schemaname = %s and last_value is not null"
            " order by 1",
            [schema],
        ).fetchall():
            lines.append(sql.SQL("select setval({}, {});\n").format(f'"{schema}".{name}', last))
        return "".join(line if isinstance(line, str) else line.as_string(connection) for line in lines)


async def _made(opened: Callable[..., AbstractAsyncContextManager[Store]]) -> dict[str, Any]:
    clock = ManualClock(_BEGAN)
    async with opened(clock=clock) as store:
        tokens = await _fill(store, clock)
        stored = await snapshot(store)
        return {"now": clock(), "stored": stored, **tokens, "becomes": _becomes(stored)}


def main() -> None:
    folder = FOLDER / str(VERSION)
    if folder.exists():
        raise SystemExit(f"{folder} is there, and what is there is never changed")
    with TemporaryDirectory() as scratch, running() as dsn:
        path = Path(scratch, "store.db")
        of_sqlite = anyio.run(_made, partial(open_sqlite, path))
        of_postgres = anyio.run(_made, partial(open_postgres, dsn, schema=SCHEMA))
        locks = {"sqlite": of_sqlite.pop("locks"), "postgres": of_postgres.pop("locks")}  # with gaps of each one's own
        assert of_sqlite == of_postgres, "the engines have come to different things"
        dumps = {"sqlite.sql": dump_of_sqlite(path), "postgres.sql": dump_of_postgres(dsn)}
    folder.mkdir()
    for name, text in dumps.items():
        (folder / name).write_text(text, encoding="utf-8")
    text = json.dumps({**of_sqlite, "locks": locks}, indent=1, ensure_ascii=False)
    (folder / "stored.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
