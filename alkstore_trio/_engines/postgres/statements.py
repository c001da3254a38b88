"""The SQL that this engine alone runs, and how a text of the catalogue becomes a statement of the server's.

A verb is one statement. Its clock is read once, into `t`: the server's, or what ``clock=`` gave; ``:now`` is that
reading. What the catalogue has fits here but for two things: SQLite's hints go, and a queue is looked for by its hash
first. Nothing is built from a value.
"""

import re
from functools import lru_cache

from ..schema import placed
from ..statements import BURIED, DELAYED, EXPIRED, JOB, LEASED, READY, SPENT

__all__ = ["compiled"]

# Every parameter travels as one type, so that each statement has one plan.
_TYPES = {
    "after": "int8",
    "backoff": "float8",
    "backoffs": "float8[]",
    "bodies": "text[]",
    "body": "text",
    "bound": "text",
    "clock": "float8",
    "consumer": "text",
    "delay": "float8",
    "delays": "float8[]",
    "error": "text",
    "expires": "float8",
    "expiries": "float8[]",
    "extend": "float8",
    "horizon": "int8",
    "id": "int8",
    "ids": "int8[]",
    "instant": "float8",
    "instants": "float8[]",
    "interval": "float8",
    "jitter": "float8",
    "keys": "text[]",
    "last_id": "int8",
    "last_rank": "int8",
    "last_run_at": "float8",
    "lease": "text",
    "limit": "int8",
    "max_attempts": "int8",
    "maxima": "int8[]",
    "n": "int8",
    "name": "text",
    "next_at": "float8",
    "offset": "int8",
    "owner": "text",
    "priorities": "int8[]",
    "priority": "int8",
    "queue": "text",
    "queues": "text[]",
    "retention": "float8",
    "retentions": "float8[]",
    "seen": "float8",
    "spec": "text",
    "state": "int2",
    "stream": "text",
    "timeout": "float8",
    "timeouts": "float8[]",
    "times": "int8",
    "token": "int8",
    "tokens": "int8[]",
    "ttl": "float8",
    "worker_ids": "text[]",
}

_CLOCK = """t as materialized (
 select coalesce(:clock, extract(epoch from clock_timestamp())::float8) as now
)"""
_NOW = "(select now from t)"
_HINT = re.compile(r" indexed by \$\w+")
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


def _hash(queue: str) -> str:
    """Of a name's bytes, whatever the database's collation."""
    return f'hashtextextended({queue} collate "C", 0)'


# The name is compared where the server has no statistics of it: it would take hash and name as independent, and a queue
# as so short that it may be sorted.
_QUEUE = re.compile(r"\bqueue = :queue\b")
_HASHED_QUEUE = f"queue_hash = {_hash(':queue')} and coalesce(queue = :queue, false)"


@lru_cache(maxsize=512)
def compiled(template: str, schema: str) -> tuple[str, tuple[str, ...]]:
    """The statement that a text is for the tables of a schema, a quoted name, and its parameters in their order."""
    text = _QUEUE.sub(_HASHED_QUEUE, _HINT.sub("", template).lstrip())
    if ":now" in text:
        text = f"with {_CLOCK},\n{text[5:]}" if text.startswith("with ") else f"with {_CLOCK}\n{text}"
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[1]
        return f"${numbers.setdefault(name, len(numbers) + 1)}::{_TYPES[name]}"

    text = _PARAMETER.sub(numbered, text.replace(":now", _NOW))
    return placed(text, schema), tuple(numbers)


# Rules, as the row knows them

_ENDS_LATER = "greatest(:now + {0}, :now + abs(:now) * 1.1102240e-16)"  # 2 ** -53 and a little: the next float at least


def _deadline(seconds: str) -> str:
    return _ENDS_LATER.format(seconds)


def _lane_of_pending(run_at: str, attempts: str) -> str:
    return f"""case
  when expires_at <= :now then 2
  when {run_at} <= :now and {attempts} < max_attempts then 1
  else 0
 end"""


# Queues

_COLUMNS = """queue_hash, queue, body, state, lane, due, priority, run_at, expires_at, max_attempts, visibility_timeout,
 base_backoff, dead_retention, created_at"""

ENQUEUE = f"""
with new as (
 select
  coalesce(:now + :delay, :instant, :now) as run_at,
  :now + :expires as expires_at
)
insert into $jobs({_COLUMNS})
select {_hash(":queue")}, :queue, body, 0,
 case when expires_at <= :now then 2 when run_at <= :now then 1 else 0 end, run_at, :priority,
 run_at, expires_at, :max_attempts, :timeout, :backoff, :retention, :now
from new, unnest(:bodies) as bodies(body)
returning id"""

ENQUEUE_TOGETHER = f"""
with new as (
 select *, coalesce(:now + delay, instant, :now) as run_at, :now + expiry as expires_at
 from unnest(:queues, :bodies, :delays, :instants, :priorities, :expiries, :maxima, :timeouts, :backoffs, :retentions)
  as rows(queue, body, delay, instant, priority, expiry, max_attempts, timeout, backoff, retention)
)
insert into $jobs({_COLUMNS})
select {_hash("queue")}, queue, body, 0,
 case when expires_at <= :now then 2 when run_at <= :now then 1 else 0 end, run_at, priority,
 run_at, expires_at, max_attempts, timeout, backoff, retention, :now
from new
returning id"""

# What time has moved, at most 500 rows of each kind, is filed anew instead of claiming; a claim that did so is asked
# again. So is one that got nothing though there is something, which another claim holds at this moment. The first rows
# are the first worker's: there is one for all, or one for each row. `date_part` is several times as fast as `extract`,
# which counts in each row.
_CLAIM = f"""
with moved as materialized (
 select id from (
  select id from $jobs
  where queue = :queue and lane = 0 and due <= :now and (state = 0 or due < :now)
  order by due, state
  limit 500
  for update skip locked) as due
 union all
 select id from (
  select id from $jobs
  where queue = :queue and lane = 1 and expires_at is not null and expires_at <= :now
  order by expires_at
  limit 500
  for update skip locked) as expired
 union all
 select id from (
  select id from $jobs
  where queue = :queue and lane = 2 and expires_at is not null and expires_at > :now
  order by expires_at
  limit 500
  for update skip locked) as unexpired
),
picked as materialized (
 select id from $jobs
 where not exists (select from moved) and queue = :queue and lane = 1 and {READY}{{behind}}
 order by ~priority, run_at, id
 limit :n
 for update skip locked
),
turn as materialized (
 select
  not exists (select from moved){{enough}} as claims,
  exists (select from picked) as gets
),
filed as (
 update $jobs
 set
  state = case when {SPENT} then 2 else state end,
  lane = case
   when {LEASED} then 0
   when {EXPIRED} then 2
   when {DELAYED} then 0
   when attempts < max_attempts then 1
   else 3
  end,
  last_error = case when {SPENT} then :error else last_error end,
  died_at = case when {SPENT} then :now else died_at end
 where queue = :queue and id = any(array(select id from moved))
),
claimed as (
 update $jobs
 set
  state = 1,
  lane = 0,
  due = {_deadline("visibility_timeout")},
  attempts = attempts + 1,
  token = token + 1,
  worker_id = case
   when cardinality(:worker_ids) = 1 then (:worker_ids)[1]
   else (:worker_ids)[array_position(array(select id from picked), id)]
  end,
  claim_expires_at = {_deadline("visibility_timeout")}
 where queue = :queue and id = any(array(select id from picked where (select claims from turn)))
 returning {JOB}
)
select {JOB}, date_part('epoch', clock_timestamp() - statement_timestamp()), not claims,
 claims and not gets and (
 (select true from $jobs
  where queue = :queue and lane = 0 and due <= :now and (state = 0 or due < :now)
  order by due, state
  limit 1) is not null
 or (select true from $jobs
  where queue = :queue and lane = 1 and {READY}{{behind}}
  order by ~priority, run_at, id
  limit 1) is not null
)
from turn
left join claimed on true"""

CLAIM = _CLAIM.format(behind="", enough="")
CLAIM_BEHIND = _CLAIM.format(
    behind=" and (~priority, run_at, id) >= (:last_rank, :last_run_at, :last_id)",
    enough=" and (select count(*) from picked) = :n",
)

ACK = f"""
delete from $jobs
where id = :id and queue = :queue and token = :token and {LEASED}
returning id"""

# `is true` keeps the claims from being joined, which may compare each with each.
_BY_EACH = "id = any(:ids) and ((id, token) in (select * from unnest(:ids, :tokens))) is true"

ACK_TOGETHER = f"""
delete from $jobs
where {_BY_EACH} and queue = :queue and {LEASED}
returning id, token"""

FAIL = f"""
update $jobs
set state = 2, lane = 3, last_error = :error, died_at = :now
where id = :id and queue = :queue and token = :token and {LEASED}
returning 1"""

_CURVE = """case when base_backoff < 1e-290 then 0 else
  least(least(base_backoff, 86400) * power(2::float8, least(attempts - 1, 900)), 86400) / 2
   + least(least(base_backoff, 86400) * power(2::float8, least(attempts - 1, 900)), 86400) / 2 * :jitter
 end"""
_AGAIN_AT = f"(:now + coalesce(:delay, {_CURVE}))"

RETRY = f"""
update $jobs
set
 state = case when attempts >= max_attempts then 2 else 0 end,
 lane = case when attempts >= max_attempts then 3 else {_lane_of_pending(_AGAIN_AT, "attempts")} end,
 due = case when attempts >= max_attempts then due else {_AGAIN_AT} end,
 run_at = case when attempts >= max_attempts then run_at else {_AGAIN_AT} end,
 worker_id = case when attempts >= max_attempts then worker_id end,
 claim_expires_at = case when attempts >= max_attempts then claim_expires_at end,
 last_error = :error,
 died_at = case when attempts >= max_attempts then :now end
where id = :id and queue = :queue and token = :token and {LEASED}
returning 1"""

_BY_ONE = "id = :id and token = :token"
_GIVEN_BACK_AT = "coalesce(:now + :delay, run_at)"

_RELEASE = f"""
update $jobs
set
 state = 0,
 lane = {_lane_of_pending(_GIVEN_BACK_AT, "attempts - 1")},
 due = {_GIVEN_BACK_AT},
 run_at = {_GIVEN_BACK_AT},
 attempts = attempts - 1,
 worker_id = null,
 claim_expires_at = null
where {{claimed}} and queue = :queue and {LEASED}
returning id, token"""

RELEASE = _RELEASE.format(claimed=_BY_ONE)
RELEASE_TOGETHER = _RELEASE.format(claimed=_BY_EACH)

_EXTENDED = _deadline("coalesce(:extend, visibility_timeout)")

_HEARTBEAT = f"""
update $jobs
set lane = 0, due = {_EXTENDED}, claim_expires_at = {_EXTENDED}
where {{claimed}} and queue = :queue and {LEASED}
returning id, token"""

HEARTBEAT = _HEARTBEAT.format(claimed=_BY_ONE)
HEARTBEAT_TOGETHER = _HEARTBEAT.format(claimed=_BY_EACH)

SWEEP = f"""
with deleted as (
 delete from $jobs
 where queue = :queue and lane = 3 and dead_retention is not null and died_at + dead_retention <= :now
 returning 1
),
buried as (
 update $jobs
 set state = 2, lane = 3, last_error = :error, died_at = :now
 where queue = :queue and lane = any(array[0, 1, 2]::int2[]) and {EXPIRED}
 returning 1
)
select (select count(*) from deleted) + (select count(*) from buried)"""

REVIVE = f"""
with revived as (
 update $jobs
 set state = 0, lane = 1, due = :now, run_at = :now, expires_at = null, attempts = 0, worker_id = null,
  claim_expires_at = null, last_error = null, died_at = null
 where id = any(:ids) and queue = :queue and {BURIED}
 returning 1
)
select count(*) from revived"""

DELETE = f"""
with deleted as (
 delete from $jobs
 where id = any(:ids) and queue = :queue and not ({LEASED})
 returning 1
)
select count(*) from deleted"""

# One of each hash: where two names have the same, which none of a million by chance does, one of them is not told.
QUEUE_NAMES = """
with recursive found(queue_hash, queue) as (
 (select queue_hash, queue from $jobs order by queue_hash limit 1)
 union all
 select next.queue_hash, next.queue
 from found, lateral (
  select queue_hash, queue from $jobs
  where queue_hash > found.queue_hash
  order by queue_hash
  limit 1) as next
)
select queue
from found"""

# Where something is ready now, the rest is not looked for.
NEXT_READY = f"""
with ready as materialized (
 select
  (select true from $jobs where queue = :queue and lane = 1 and {READY} limit 1) is not null
  or (select true from $jobs where queue = :queue and lane = 0 and due <= :now and {READY} limit 1) is not null
  or (select true from $jobs
   where queue = :queue and lane = 2 and expires_at is not null and expires_at > :now and {READY}
   limit 1) is not null as at_once
)
select :now, (select at_once from ready), next.due, next.state, stray.pending, stray.leased
from (
 select min(case when state = 0 then due end) as pending, min(case when state = 1 then due end) as leased
 from (
  select due, state from $jobs
  where not (select at_once from ready) and queue = :queue and lane = 2 and state = 1 and due >= :now
  union all
  select due, state from $jobs
  where not (select at_once from ready) and queue = :queue and lane = 1 and ({DELAYED} or {LEASED})
  union all
  select due, state from $jobs
  where not (select at_once from ready) and queue = :queue and lane = 2
   and expires_at is not null and expires_at > :now and ({DELAYED} or {LEASED})
 ) as strays
) as stray
left join (
 select due, state from $jobs
 where not (select at_once from ready) and queue = :queue and lane = 0 and due >= :now and ({DELAYED} or {LEASED})
 order by due, state
 limit 1
) as next on true"""

# Streams

PUBLISH = """
with stream as (
 insert into $streams(stream, last)
 values (:stream, cardinality(:bodies))
 on conflict(stream) do update
 set last = $streams.last + excluded.last
 returning last
),
published as (
 insert into $events(stream, "offset", key, body, created_at)
 select :stream, last - cardinality(:bodies) + n, key, body, :now
 from stream, unnest(:keys, :bodies) with ordinality as events(key, body, n)
)
select last from stream"""

READ_FROM_CONSUMER = """
select "offset", key, body, created_at
from $events
where stream = :stream and "offset" > coalesce(
 (select saved."offset" from $offsets as saved where stream = :stream and consumer = :consumer), 0)
order by "offset"
limit :limit"""

STREAM_STATISTICS = """
select
 (select min("offset") from $events where stream = :stream),
 (select max("offset") from $events where stream = :stream),
 array(select consumer from $offsets where stream = :stream order by consumer),
 array(select "offset" from $offsets where stream = :stream order by consumer)"""

SAVE_OFFSET = """
insert into $offsets as saved (stream, consumer, "offset")
values (:stream, :consumer, :offset)
on conflict(stream, consumer) do update
set "offset" = excluded."offset"
where excluded."offset" > saved."offset"
returning 1"""

TRIM = """
with trimmed as (
 delete from $events
 where stream = :stream and "offset" <= :horizon
 returning 1
)
select count(*) from trimmed"""

# Wakes

NOTIFY = """
select pg_notify(:name, body) from unnest(:bodies) as bodies(body)"""

# Locks. A row without an owner is kept for a day, so that a stalled insert cannot bring back a smaller token.

TRY_LOCK = f"""
with taken as (
 insert into $locks as lock (name, owner, token, expires_at)
 values (:name, :owner, nextval($'tokens'), {_deadline(":ttl")})
 on conflict(name) do update
 set owner = excluded.owner, token = nextval($'tokens'), expires_at = excluded.expires_at
 where lock.owner is null or lock.expires_at <= :now
 returning token
)
select :owner, token from taken
union all
select owner, token from $locks
where name = :name and owner is not null and expires_at > :now and not exists (select from taken)"""

RENEW = f"""
update $locks
set expires_at = {_deadline(":ttl")}
where name = :name and token = :token and owner is not null and expires_at > :now
returning 1"""

UNLOCK = """
update $locks
set owner = null
where name = :name and token = :token and owner is not null
returning 1"""

FORGET_LOCKS = """
delete from $locks
where owner is null and expires_at < :now - 86400"""

# Schedules

ADD_SCHEDULE = """
insert into $schedules as known
 (name, spec, interval, queue, body, priority, expires, max_attempts, next_at)
values (:name, :spec, :interval, :queue, :body, :priority, :expires, :max_attempts, :now + :interval)
on conflict(name) do update
set spec = excluded.spec, interval = excluded.interval, queue = excluded.queue, body = excluded.body,
 priority = excluded.priority, expires = excluded.expires, max_attempts = excluded.max_attempts,
 next_at = case when known.interval = excluded.interval then known.next_at else excluded.next_at end
returning 1"""

REMOVE_SCHEDULE = """
delete from $schedules
where name = :name
returning 1"""

DUE_SCHEDULES = """
select :now, due.name, due.next_at, due.interval, later.next_at
from (select min(next_at) as next_at from $schedules where next_at > :now) as later
left join $schedules as due on due.next_at <= :now
order by due.next_at, due.name"""

# The lease is judged where the schedule's row is locked, by a clock that is read there.
FIRE = f"""
with advanced as (
 update $schedules as schedule
 set next_at = :next_at
 from $locks as lease
 where schedule.name = :name and schedule.next_at = :seen
  and lease.name = :lease and lease.token = :token and lease.owner is not null
  and lease.expires_at > coalesce(:clock, extract(epoch from clock_timestamp())::float8)
 returning schedule.queue, schedule.body, schedule.priority, schedule.expires, schedule.max_attempts
),
fired as (
 insert into $jobs({_COLUMNS})
 select {_hash("queue")}, queue, body, 0,
  case when :instant + expires <= :instant then 2 else 1 end, :instant, priority, :instant,
  :instant + expires, coalesce(max_attempts, :max_attempts), :timeout, :backoff, :retention, :instant
 from advanced, generate_series(1, :times)
)
select
 (select queue from advanced),
 (select true from $locks
  where name = :lease and token = :token and owner is not null
   and expires_at > coalesce(:clock, extract(epoch from clock_timestamp())::float8)) is not null"""

READ_CLOCK = """
select :now"""

# Upkeep

DEAD_ROWS = """
select n_dead_tup
from pg_stat_all_tables
where relid = $'jobs'::regclass"""

OLD_SNAPSHOTS = """
select pid, application_name, extract(epoch from clock_timestamp() - xact_start)::float8
from pg_stat_activity
where backend_xmin is not null and datname = current_database() and pid <> pg_backend_pid()
 and xact_start < clock_timestamp() - make_interval(secs => :timeout)
order by xact_start
limit 3"""

# Who is in the way

IS_THERE = """
select to_regclass($'schema') is not null"""

STORE = """
select store::text
from $schema"""

# The bound of a transaction that is not the store's. A shorter one stays.
BOUND_WAITS = """
with own as materialized (
 select current_setting('lock_timeout') as bound
)
select
 bound,
 case
  when bound = '0' or bound::interval > (:bound)::interval then set_config('lock_timeout', :bound, true)
 end is not null
from own"""

SET_BOUND = "select set_config('lock_timeout', :bound, true)"

WRITERS = """
select session.pid, session.application_name, extract(epoch from clock_timestamp() - session.xact_start)::float8
from pg_locks as held
join pg_stat_activity as session on session.pid = held.pid
where held.granted and held.mode = 'RowExclusiveLock'
 and held.relation in ($'streams'::regclass, $'offsets'::regclass)
 and session.pid <> pg_backend_pid() and session.xact_start is not null
order by session.xact_start
limit 1"""
