"""The schema of the SQL engines: its version, its text, and the steps from one version to the next.

``$`` before a name stands for the prefix that keeps the store's tables apart from an application's. A version that was
released never changes; a new one is a new step.
"""

import re
from collections.abc import Sequence

from .._errors import shown
from .._rules.names import UNWRITABLE

__all__ = [
    "PREFIX",
    "SCHEMA",
    "VERSION",
    "checked_prefix",
    "placed",
    "postgres_steps",
    "prefixed",
    "quoted",
    "sqlite_steps",
]

_LONGEST_NAME = 63  # bytes that Postgres keeps of a name
_PLACE = re.compile(r"\$([a-z]\w*)|\$'(\w+)'")  # the latter where a function takes a name as text
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

PREFIX = "alkstore_"
SCHEMA = "alkstore"
VERSION = 1


def checked_prefix(prefix: str) -> str:
    """What the tables' names begin with: an identifier that SQLite does not keep for itself."""
    if not isinstance(prefix, str):
        raise TypeError(f"table_prefix must be a str, not {type(prefix).__name__}")
    if not _IDENTIFIER.fullmatch(prefix) or prefix.lower().startswith("sqlite_"):
        raise ValueError(f"table_prefix must be an identifier of letters, digits and _, not {shown(prefix)}")
    return prefix


def quoted(schema: str) -> str:
    """A schema's name as Postgres reads it; any will do that it can keep."""
    if not isinstance(schema, str):
        raise TypeError(f"schema must be a str, not {type(schema).__name__}")
    if not schema or UNWRITABLE.search(schema) or len(schema.encode()) > _LONGEST_NAME:
        raise ValueError(f"schema must be a name of 1 to {_LONGEST_NAME} bytes, not {shown(schema)}")
    if schema.startswith("pg_") or schema == "information_schema":
        raise ValueError(f"schema must not be one that Postgres keeps for itself, as {shown(schema)} is")
    escaped = schema.replace('"', '""')
    return f'"{escaped}"'


def prefixed(text: str, prefix: str) -> str:
    """A statement for the tables of a prefix, which is an identifier that was checked."""
    return text.replace("$", prefix)


# A job's `lane` says where to look for it, never what it is: 0 waits for `due`, 1 ready, 2 expired, 3 dead. `due` is
# the `run_at` of a pending row and the deadline of a claim.
_SQLITE_1 = """
create table $schema(
 version integer not null
) strict;

create table $counters(
 name text primary key,
 last integer not null
) strict, without rowid;
insert into $counters(name, last)
values ('job', 0), ('token', 0), ('pruned', 0), ('prunings', 0);

create table $jobs(
 id integer primary key,
 queue text not null,
 body text not null,
 state integer not null, -- 0 pending, 1 processing, 2 dead
 lane integer not null,
 due real not null,
 priority integer not null,
 run_at real not null,
 expires_at real,
 attempts integer not null default 0,
 max_attempts integer not null,
 visibility_timeout real not null,
 base_backoff real not null,
 dead_retention real,
 worker_id text,
 claim_expires_at real,
 token integer not null default 0,
 created_at real not null,
 last_error text,
 died_at real
) strict;
create index $jobs_of_queue on $jobs(queue, id);
create index $jobs_ready on $jobs(queue, priority desc, run_at, id) where lane = 1;
create index $jobs_due on $jobs(queue, due, state) where lane = 0;
create index $jobs_expiry on $jobs(queue, lane, expires_at) where expires_at is not null;
create index $jobs_overdue on $jobs(queue, due) where lane = 2 and state = 1;
create index $jobs_dead on $jobs(queue, id) where lane = 3;
create index $jobs_retention on $jobs(queue, died_at + dead_retention) where lane = 3 and dead_retention is not null;

create table $streams(
 stream text primary key,
 last integer not null
) strict, without rowid;
create table $events(
 stream text not null,
 "offset" integer not null,
 key text,
 body text not null,
 created_at real not null,
 primary key (stream, "offset")
) strict, without rowid;
create table $offsets(
 stream text not null,
 consumer text not null,
 "offset" integer not null,
 primary key (stream, consumer)
) strict, without rowid;

create table $locks(
 name text primary key,
 owner text not null,
 token integer not null,
 expires_at real not null
) strict, without rowid;

create table $schedules(
 name text primary key,
 spec text not null,
 interval real not null,
 queue text not null,
 body text not null,
 priority integer not null,
 expires real,
 max_attempts integer,
 next_at real not null
) strict, without rowid;
create index $schedules_next on $schedules(next_at, name);

-- What commits woke, for the other stores on the file: one row a channel and origin, `seq` growing with each origin.
create table $wakes(
 channel text not null,
 origin integer not null,
 seq integer not null,
 woken_at real not null,
 primary key (channel, origin)
) strict, without rowid;
"""

_SQLITE = (_SQLITE_1,)  # the n-th leads from version n to the next

# As in SQLite but for a few things. The key of a job has its queue, which spares an index; a sequence keeps ids unique.
# Indexes have a queue's hash in the place of its name, since numbers compare several times as fast: a claim of many
# takes a tenth less. It is the hash that partitions go by, and checked, should a dump meet a server that has another; a
# generated column would have its expression read anew for each row that is updated. A row's columns are found fastest
# behind such as have one length and are never null. One row comparison must be able to go on behind a claim:
# `~priority` ascends where priority descends. A queue's table is all change: its key has room for the row that a claim
# makes of each, and it is vacuumed by what has died and not by its share.
_POSTGRES_1 = """
create table $schema(
 version int8 not null,
 store uuid not null default gen_random_uuid()
);

create table $jobs(
 id int8 generated by default as identity,
 token int8 not null default 0,
 due float8 not null,
 priority int8 not null,
 run_at float8 not null,
 attempts int8 not null default 0,
 max_attempts int8 not null,
 visibility_timeout float8 not null,
 base_backoff float8 not null,
 created_at float8 not null,
 queue_hash int8 not null,
 state int2 not null, -- 0 pending, 1 processing, 2 dead
 lane int2 not null,
 queue text collate "C" not null,
 body text not null,
 expires_at float8,
 dead_retention float8,
 claim_expires_at float8,
 died_at float8,
 worker_id text,
 last_error text,
 primary key (queue_hash, id) with (fillfactor = 50),
 constraint jobs_hashed check (queue_hash = hashtextextended(queue, 0))
) with (
 fillfactor = 70,
 autovacuum_vacuum_scale_factor = 0,
 autovacuum_vacuum_threshold = 2000,
 autovacuum_vacuum_cost_delay = 0,
 autovacuum_analyze_scale_factor = 0,
 autovacuum_analyze_threshold = 50000
);
create index jobs_ready on $jobs(queue_hash, (~priority), run_at, id) where lane = 1;
create index jobs_due on $jobs(queue_hash, due, state) where lane = 0;
create index jobs_expiry on $jobs(queue_hash, lane, expires_at) where expires_at is not null;
create index jobs_overdue on $jobs(queue_hash, due) where lane = 2 and state = 1;
create index jobs_dead on $jobs(queue_hash, id) where lane = 3;
create index jobs_retention on $jobs(queue_hash, (died_at + dead_retention))
 where lane = 3 and dead_retention is not null;

create table $streams(
 stream text collate "C" primary key,
 last int8 not null
) with (fillfactor = 50);
create table $events(
 stream text collate "C" not null,
 "offset" int8 not null,
 key text,
 body text not null,
 created_at float8 not null,
 primary key (stream, "offset")
);
create table $offsets(
 stream text collate "C" not null,
 consumer text collate "C" not null,
 "offset" int8 not null,
 primary key (stream, consumer)
) with (fillfactor = 50);

create sequence $tokens;
create table $locks(
 name text collate "C" primary key,
 owner text,
 token int8 not null,
 expires_at float8 not null
) with (fillfactor = 50);

create table $schedules(
 name text collate "C" primary key,
 spec text not null,
 interval float8 not null,
 queue text not null,
 body text not null,
 priority int8 not null,
 expires float8,
 max_attempts int8,
 next_at float8 not null
);
create index schedules_next on $schedules(next_at, name);
"""

_POSTGRES = (_POSTGRES_1,)


def placed(text: str, schema: str) -> str:
    """A text for the tables of a schema, a quoted name."""
    literal = schema.replace("'", "''")
    return _PLACE.sub(lambda table: f"{schema}.{table[1]}" if table[1] else f"'{literal}.{table[2]}'", text)


def sqlite_steps(version: int) -> list[str]:
    """The statements that lead from a version, 0 being an empty file, to today's."""
    return _statements(_SQLITE[version:])


def postgres_steps(version: int) -> list[str]:
    """The same for a schema of Postgres, the noting of today's version included."""
    noted = f"update $schema set version = {VERSION}" if version else f"insert into $schema(version) values ({VERSION})"
    return [*_statements(_POSTGRES[version:]), noted]


def _statements(steps: Sequence[str]) -> list[str]:
    return [text for piece in ";".join(steps).split(";") if (text := _without_comments(piece))]


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("--")[0].rstrip() for line in text.splitlines() if line.partition("--")[0].strip())
