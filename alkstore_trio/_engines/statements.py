"""The SQL that SQLite runs, and of it the fragments and reads that Postgres takes over.

``$`` before a name is the tables' prefix. Parameters are named; no text is built from a value. A fragment that decides
where a job stands has the name of the `Slot` that the rules give it, and a property test pins the two to each other.
"""

# Where a job stands at :now

_UNEXPIRED = "(expires_at is null or expires_at > :now)"
_FREE = "(state = 0 or state = 1 and claim_expires_at < :now)"
_DUE = "(state = 0 and run_at <= :now or state = 1 and claim_expires_at < :now)"

READY = f"{_DUE} and {_UNEXPIRED} and attempts < max_attempts"
SPENT = f"{_DUE} and {_UNEXPIRED} and attempts >= max_attempts"
EXPIRED = f"{_FREE} and expires_at is not null and expires_at <= :now"
DELAYED = f"state = 0 and run_at > :now and {_UNEXPIRED}"
LEASED = "state = 1 and claim_expires_at >= :now"
BURIED = "state = 2"

JOB = """id, queue, body, state, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout,
 base_backoff, dead_retention, worker_id, claim_expires_at, token, created_at, last_error, died_at"""

# Counters

RESERVE = """
update $counters
set last = last + :n
where name = :name
returning last"""

GIVE_BACK = """
update $counters
set last = :last
where name = 'job' and last = :end"""

# Queues

ENQUEUE = """
insert into $jobs(id, queue, body, state, lane, due, priority, run_at, expires_at, max_attempts,
 visibility_timeout, base_backoff, dead_retention, created_at)
values (:id, :queue, :body, 0, :lane, :run_at, :priority, :run_at, :expires_at, :max_attempts,
 :visibility_timeout, :base_backoff, :dead_retention, :created_at)"""

GET_JOB = f"""
select {JOB}
from $jobs
where id = :id and queue = :queue"""

JOBS = f"""
select {JOB}
from $jobs
where queue = :queue and id > :after
order by id
limit :limit"""

JOBS_OF_STATE = f"""
select {JOB}
from $jobs
where queue = :queue and id > :after and state = :state
order by id
limit :limit"""

DEAD_JOBS = f"""
select {JOB}
from $jobs
where queue = :queue and id > :after and lane = 3
order by id
limit :limit"""

COUNT_JOBS = f"""
select
 count(*) filter (where state = 0),
 count(*) filter (where state = 1),
 count(*) filter (where state = 2),
 count(*) filter (where {READY})
from $jobs
where queue = :queue"""

QUEUE_NAMES = """
with recursive found(queue) as (
 select min(queue) from $jobs
 union all
 select (select min(queue) from $jobs where queue > found.queue)
 from found
 where found.queue is not null
)
select queue
from found
where queue is not null"""

# What time has moved, so that a claim must file it anew: 1 due or lapsed, 2 expired, 4 no longer expired.
MOVED = """
select
 exists(
  select 1 from $jobs
  where queue = :queue and lane = 0 and due <= :now and (state = 0 or due < :now))
 + 2 * exists(
  select 1 from $jobs indexed by $jobs_expiry
  where queue = :queue and lane = 1 and expires_at is not null and expires_at <= :now)
 + 4 * exists(
  select 1 from $jobs indexed by $jobs_expiry
  where queue = :queue and lane = 2 and expires_at is not null and expires_at > :now)"""

BURY_SPENT = f"""
update $jobs
set state = 2, lane = 3, last_error = :error, died_at = :now
where queue = :queue and lane = 0 and due <= :now and {SPENT}"""

FILE_DUE = """
update $jobs
set lane = case when expires_at <= :now then 2 else 1 end
where queue = :queue and lane = 0 and due <= :now and (state = 0 or due < :now)"""

FILE_EXPIRED = """
update $jobs indexed by $jobs_expiry
set lane = 2
where queue = :queue and lane = 1 and expires_at is not null and expires_at <= :now"""

FILE_UNEXPIRED = """
update $jobs indexed by $jobs_expiry
set lane = 0
where queue = :queue and lane = 2 and expires_at is not null and expires_at > :now"""

FIRST_READY = f"""
select {JOB}
from $jobs
where queue = :queue and lane = 1 and {READY}
order by priority desc, run_at, id
limit :n"""

CLAIM = """
update $jobs
set state = 1, lane = 0, due = :claim_expires_at, attempts = :attempts, token = :token, worker_id = :worker_id,
 claim_expires_at = :claim_expires_at
where id = :id"""

ACK = f"""
delete from $jobs
where id = :id and queue = :queue and token = :token and {LEASED}"""

HELD = f"""
select {JOB}
from $jobs
where id = :id and queue = :queue and token = :token and {LEASED}"""

REFILE = """
update $jobs
set state = :state, lane = :lane, due = :due, run_at = :run_at, attempts = :attempts, worker_id = :worker_id,
 claim_expires_at = :claim_expires_at, last_error = :last_error, died_at = :died_at
where id = :id"""

DELETE_RETAINED = """
delete from $jobs
where queue = :queue and lane = 3 and dead_retention is not null and died_at + dead_retention <= :now"""

BURY_EXPIRED = f"""
update $jobs indexed by $jobs_expiry
set state = 2, lane = 3, last_error = :error, died_at = :now
where queue = :queue and lane in (0, 1, 2) and {EXPIRED}"""

REVIVE = f"""
update $jobs
set state = 0, lane = 1, due = :now, run_at = :now, expires_at = null, attempts = 0, worker_id = null,
 claim_expires_at = null, last_error = null, died_at = null
where id = :id and queue = :queue and {BURIED}"""

DELETE = f"""
delete from $jobs
where id = :id and queue = :queue and not ({LEASED})"""

READY_NOW = f"""
select
 exists(
  select 1 from $jobs
  where queue = :queue and lane = 1 and {READY})
 or exists(
  select 1 from $jobs
  where queue = :queue and lane = 0 and due <= :now and {READY})
 or exists(
  select 1 from $jobs indexed by $jobs_expiry
  where queue = :queue and lane = 2 and expires_at is not null and expires_at > :now and {READY})"""

NEXT_DUE = f"""
select due, state
from $jobs
where queue = :queue and lane = 0 and due >= :now and ({DELAYED} or {LEASED})
order by due, state
limit 1"""

# Rows of other lanes that wait for an instant after all: the clock was set back.
NEXT_STRAY = f"""
select min(case when state = 0 then due end), min(case when state = 1 then due end)
from (
 select due, state from $jobs indexed by $jobs_overdue
 where queue = :queue and lane = 2 and state = 1 and due >= :now
 union all
 select due, state from $jobs
 where queue = :queue and lane = 1 and ({DELAYED} or {LEASED})
 union all
 select due, state from $jobs indexed by $jobs_expiry
 where queue = :queue and lane = 2 and expires_at is not null and expires_at > :now and ({DELAYED} or {LEASED}))"""

# Streams

NEXT_OFFSETS = """
insert into $streams(stream, last)
values (:stream, :n)
on conflict(stream) do update
set last = last + :n
returning last"""

PUBLISH = """
insert into $events(stream, "offset", key, body, created_at)
values (:stream, :offset, :key, :body, :created_at)"""

# Twenty rows that share all but two columns cost a third of what they do one by one; a hundred would cost no less.
BODIES = [f"body_{n}" for n in range(20)]
_OFFSETS_AND_BODIES = ", ".join(f"(:offset + {n}, :{body})" for n, body in enumerate(BODIES))
PUBLISH_TOGETHER = f"""
insert into $events(stream, "offset", key, body, created_at)
select :stream, column1, :key, column2, :created_at
from (values {_OFFSETS_AND_BODIES})"""

GET_OFFSET = """
select "offset"
from $offsets
where stream = :stream and consumer = :consumer"""

SAVE_OFFSET = """
insert into $offsets(stream, consumer, "offset")
values (:stream, :consumer, :offset)
on conflict(stream, consumer) do update
set "offset" = excluded."offset"
where excluded."offset" > $offsets."offset\""""

READ_SINCE = """
select "offset", key, body, created_at
from $events
where stream = :stream and "offset" > :offset
order by "offset"
limit :limit"""

TRIM = """
delete from $events
where stream = :stream and "offset" <= :horizon"""

STREAM_ENDS = """
select
 (select min("offset") from $events where stream = :stream),
 (select max("offset") from $events where stream = :stream)"""

CONSUMERS = """
select consumer, "offset"
from $offsets
where stream = :stream"""

STREAM_NAMES = """
select stream
from $streams
where exists(select 1 from $events where $events.stream = $streams.stream)
union
select stream
from $offsets
order by 1"""

# Locks

GET_LOCK = """
select owner, token, expires_at
from $locks
where name = :name"""

TAKE_LOCK = """
insert into $locks(name, owner, token, expires_at)
values (:name, :owner, :token, :expires_at)
on conflict(name) do update
set owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at"""

RENEW = """
update $locks
set expires_at = :expires_at
where name = :name and token = :token and expires_at > :now"""

UNLOCK = """
delete from $locks
where name = :name and token = :token"""

# Schedules

GET_SCHEDULE = """
select next_at, interval
from $schedules
where name = :name"""

ADD_SCHEDULE = """
insert into $schedules(name, spec, interval, queue, body, priority, expires, max_attempts, next_at)
values (:name, :spec, :interval, :queue, :body, :priority, :expires, :max_attempts, :next_at)
on conflict(name) do update
set spec = excluded.spec, interval = excluded.interval, queue = excluded.queue, body = excluded.body,
 priority = excluded.priority, expires = excluded.expires, max_attempts = excluded.max_attempts,
 next_at = excluded.next_at"""

REMOVE_SCHEDULE = """
delete from $schedules
where name = :name"""

SCHEDULES = """
select name, spec, queue, priority, expires, max_attempts, next_at
from $schedules
order by name"""

DUE_SCHEDULES = """
select name, next_at, interval
from $schedules
where next_at <= :now
order by next_at, name"""

NEXT_SCHEDULE = """
select min(next_at)
from $schedules
where next_at > :now"""

ADVANCE = """
update $schedules
set next_at = :next_at
where name = :name and next_at = :seen
returning queue, body, priority, expires, max_attempts"""

# Wakes between stores

ADD_WAKE = """
insert into $wakes(channel, origin, seq, woken_at)
values (:channel, :origin, :seq, :now)
on conflict(channel, origin) do update
set seq = excluded.seq, woken_at = excluded.woken_at"""

WAKES = """
select channel, origin, seq
from $wakes
where origin <> :origin"""

PRUNED = """
select
 (select last from $counters where name = 'prunings'),
 (select last from $counters where name = 'pruned')"""

SUPERFLUOUS_WAKES = """
select woken_at
from $wakes
order by woken_at desc
limit 1 offset :kept"""

PRUNE_WAKES = """
delete from $wakes
where woken_at <= :until"""

PRUNE = """
update $counters
set last = case name when 'prunings' then last + 1 else :until end
where name in ('prunings', 'pruned')"""
