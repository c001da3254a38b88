"""The Postgres engine against its own statements on psycopg alone, against itself without what it does, and peers.

    python -m tests.bench.postgres [--quick] [--only NAME] [--peers PYTHON]

Time is by the wall: the server and the disk are part of what is measured. All runs on one durable server of the
script's own, and each turn in a fresh database, but where a backlog takes long to make. The store is on trio; psycopg's
own connection is on asyncio. Peers run in the interpreter that is given, which `postgres_peers` tells about.
"""

import argparse
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import attrs
import psycopg
import trio

from alkstore_trio import Job, StopToken, Store, open_postgres
from alkstore_trio import _ops as ops
from alkstore_trio._engines.postgres import PostgresEngine, sqlops
from alkstore_trio._engines.postgres import Server as Dialled
from alkstore_trio._engines.postgres import statements as sql
from alkstore_trio._rules.names import queue_wake
from alkstore_trio._rules.payload import encode
from alkstore_trio._rules.stamps import PLAIN
from alkstore_trio._waiting import bell_on
from tests.servers import Server, find_binaries

from .harness import PAYLOAD, Samples, on_loop, tasks_of, turns

_ROOT = Path(__file__).parents[2]
_SCHEMA = '"alkstore"'
_TASKS = 8
_BULK = 1_000  # jobs that one statement makes, where making them is not measured
_BATCH = 50
_OFF = "&options=-csynchronous_commit%3Doff"
_EVENTS = 100  # in a batch
_ONE = ops.Claim("q", "worker", 1)
_AHEAD = ops.Claim("q", "worker", 64)

_wall = time.perf_counter
_names = (f"bench_{number}" for number in count())

Measured = Callable[[str], float]  # in the database of a DSN: seconds per unit


@attrs.frozen
class Bench:
    """Where and how much is measured."""

    server: Server
    quick: bool
    peers: str | None  # an interpreter

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.quick else full

    def run(self, title: str, contenders: Mapping[str, Measured], rounds: int) -> Samples:
        samples = Samples(title)
        for name in turns(contenders, self.size(rounds, 1)):
            with self.database() as dsn:
                samples.add(name, contenders[name](dsn))
        samples.times()
        return samples

    def against(self, title: str, own: Mapping[str, Measured], jobs: int, peers: Mapping[str, str]) -> Samples:
        """With those of the peers that there are, each by the name of its goal."""
        here: dict[str, Measured] = {}
        for peer in peers:
            try:
                with self.database() as dsn:
                    self.peer(peer, 1, dsn)
            except LookupError as error:
                print(f"\n  {peer:56} skipped: {error}", end="")
            else:
                here[peer] = partial(self.peer, peer, jobs)
        samples = self.run(title, {**own, **here}, 5)
        for peer in here:
            samples.ratio(peer, next(iter(own)), peers[peer])
        return samples

    def peer(self, name: str, jobs: int, dsn: str) -> float:
        if self.peers is None:
            raise LookupError("no --peers")
        command = [self.peers, "-m", "tests.bench.postgres_peers", name, dsn, str(jobs)]
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if ended.returncode:
            missing = ended.stderr.strip().rpartition("\n")[2]
            raise LookupError(missing) if "ModuleNotFoundError" in missing else RuntimeError(ended.stderr)
        return float(ended.stdout.split()[-1])

    @contextmanager
    def database(self) -> Iterator[str]:
        """The DSN of an empty database."""
        name = next(_names)
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}")
            try:
                yield self.server.dsn.replace("@/postgres?", f"@/{name}?")
            finally:
                connection.execute(f"drop database {name} with (force)")


def _trio(work: Callable[..., Awaitable[float]], *args: Any) -> Measured:
    return lambda dsn: on_loop("trio", partial(work, dsn, *args))


def _asyncio(work: Callable[..., Awaitable[float]], *args: Any) -> Measured:
    return lambda dsn: on_loop("asyncio", partial(work, dsn, *args))


def _enqueue() -> ops.Enqueue:
    return ops.Enqueue("q", (encode(PAYLOAD),), PLAIN, None, None, 0, None)


async def _fill(store: Store, jobs: int) -> None:
    for first in range(0, jobs, _BULK):
        await store.queue("q").enqueue_many([PAYLOAD] * min(_BULK, jobs - first))


class Bare:
    """The store's statements on psycopg's own connection, set as the store's are, and nothing more."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, dsn: str) -> "Bare":
        options = "-c plan_cache_mode=force_generic_plan -c jit=off"
        if _OFF in dsn:
            options += " -c synchronous_commit=off"
        return cls(
            await psycopg.AsyncConnection.connect(
                dsn.replace(_OFF, ""), options=options, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
            )
        )

    async def run(self, template: str, params: Mapping[str, Any]) -> list[Any]:
        text, names = sql.compiled(template, _SCHEMA)
        cursor = await self.connection.execute(text, [params[name] for name in names], prepare=True, binary=True)
        return await cursor.fetchall()


# One verb at a time


async def enqueue(dsn: str, jobs: int) -> float:
    async with open_postgres(dsn) as store:
        queue = store.queue("q")
        await queue.enqueue(PAYLOAD)
        started = _wall()
        for _ in range(jobs):
            await queue.enqueue(PAYLOAD)
        return (_wall() - started) / jobs


async def bare_enqueue(dsn: str, jobs: int) -> float:
    async with open_postgres(dsn):
        pass
    bare = await Bare.connect(dsn)
    async with bare.connection:
        template, params = next(sqlops.enqueue([_enqueue()], None))
        await bare.run(template, params)
        started = _wall()
        for _ in range(jobs):
            await bare.run(template, {**params, "bodies": [encode(PAYLOAD)]})
        return (_wall() - started) / jobs


async def drain(dsn: str, jobs: int, tasks: int = 1) -> float:
    async with open_postgres(dsn) as store:
        queue = store.queue("q")
        await _fill(store, jobs)
        await _connected(store)

        async def work() -> None:
            while (handle := await queue.claim("worker")) is not None:
                await handle.ack()

        return await tasks_of(tasks, work) / jobs


async def bare_drain(dsn: str, jobs: int) -> float:
    async with open_postgres(dsn) as store:
        await _fill(store, jobs)
    bare = await Bare.connect(dsn)
    async with bare.connection:
        template, params = next(sqlops.claim([_ONE], None, None))
        started = _wall()
        for _ in range(jobs):
            [row] = await bare.run(template, params)
            await bare.run(sql.ACK, {"clock": None, "queue": "q", "id": row[0], "token": row[14]})
        return (_wall() - started) / jobs


def verbs(bench: Bench) -> None:
    jobs = bench.size(2_000, 20)
    for commit, option in ("on", ""), ("off", _OFF):
        contenders = {
            "enqueue": _trio(enqueue, jobs),
            "psycopg's enqueue": _asyncio(bare_enqueue, jobs),
            "claim + ack": _trio(drain, jobs),
            "psycopg's claim + ack": _asyncio(bare_drain, jobs),
        }
        placed = {name: partial(_with, option, measured) for name, measured in contenders.items()}
        samples = bench.run(f"one verb at a time, one task, synchronous_commit={commit}", placed, 9)
        samples.ratio("psycopg's enqueue", "enqueue", "at least 1.0")
        samples.ratio("psycopg's claim + ack", "claim + ack", "at least 1.0")


def _with(option: str, measured: Measured, dsn: str) -> float:
    return measured(dsn + option)


# Draining


async def _connected(store: Store) -> None:
    """As many connections as the peers open before they are timed."""
    await tasks_of(_TASKS, store.queue("none").statistics)


def one_by_one(bench: Bench) -> None:
    jobs = bench.size(20_000, 40)
    goals = {"pgqueuer": "at least 1.1", "pgmq": "at least 2.5"}
    goals |= {"procrastinate": "at least 7", "chancy": "at least 7", "chancy, writing no log": ""}
    bench.against(f"{jobs:,} jobs drained, 8 tasks, per job", {"8 tasks": _trio(drain, jobs, _TASKS)}, jobs, goals)


async def worker(dsn: str, jobs: int) -> float:
    async with open_postgres(dsn) as store:
        await _fill(store, jobs)
        await _connected(store)
        stop, left = StopToken(), jobs

        async def handle(job: Job) -> None:
            nonlocal left
            left -= 1
            if not left:
                stop.cancel()

        started = _wall()
        await store.queue("q").run_worker(handle, concurrency=_TASKS, stop=stop)
        return (_wall() - started) / jobs


async def bare_worker(dsn: str, jobs: int) -> float:
    """The store's statements and connections, and no lanes, leases, wakes or failures."""
    async with open_postgres(dsn) as store:
        await _fill(store, jobs)
    server = Dialled(dsn, "", _SCHEMA, 10.0)
    claiming, acking = await server.connect(), await server.connect()
    ahead, waiting = anyio.create_memory_object_stream[Any](_AHEAD.n)
    done: list[tuple[int, int]] = []
    some = anyio.Event()

    async def handle() -> None:
        async with waiting.clone() as mine:
            async for row in mine:
                done.append((row.id, row.token))
                some.set()

    async def ack() -> None:
        nonlocal done, some
        left = jobs
        while left:
            await some.wait()
            claims, done, some = done, [], anyio.Event()
            await server.run(acking, sqlops.ack([ops.Ack("q", tuple(claims))], None))
            left -= len(claims)

    started = _wall()
    async with anyio.create_task_group() as tasks, ahead, waiting:
        for _ in range(_TASKS):
            tasks.start_soon(handle)
        tasks.start_soon(ack)
        while rows := await server.run(claiming, sqlops.HANDLERS[ops.Claim](_AHEAD, None)):
            for row in rows:
                await ahead.send(row)
        ahead.close()
    taken = _wall() - started
    claiming.abort()
    acking.abort()
    return taken / jobs


def workers(bench: Bench) -> None:
    jobs = bench.size(20_000, 200)
    own = {"run_worker": _trio(worker, jobs), "bare loop": _trio(bare_worker, jobs)}
    goals = {"pgqueuer": "at least 5", "procrastinate": "at least 30"}
    samples = bench.against("run_worker, concurrency 8, handlers that do nothing, per job", own, jobs, goals)
    samples.ratio("bare loop", "run_worker", "at least 0.6")


async def drain_batches(dsn: str, jobs: int) -> float:
    async with open_postgres(dsn) as store:
        queue = store.queue("q")
        await _fill(store, jobs)
        await _connected(store)

        async def work() -> None:
            while handles := await queue.claim_batch("worker", _BATCH):
                await queue.ack_batch(handles)

        return await tasks_of(_TASKS, work) / jobs


def batches(bench: Bench) -> None:
    jobs = bench.size(20_000, 400)
    goals = {"pgmq in batches": "at least 2.5"}
    bench.against("in batches of 50, 8 tasks, per job", {"batches": _trio(drain_batches, jobs)}, jobs, goals)


# What travels together, and what is told


async def enqueuers(dsn: str, tasks: int, jobs: int, alone: bool = False) -> float:
    async with open_postgres(dsn) as store:
        engine, queue = _engine(store), store.queue("q")

        async def each_alone() -> None:
            for _ in range(jobs // tasks):
                await engine._committed(sqlops.HANDLERS[ops.Enqueue](_enqueue(), None))

        async def work() -> None:
            for _ in range(jobs // tasks):
                await queue.enqueue(PAYLOAD)

        return await tasks_of(tasks, each_alone if alone else work) / (jobs // tasks * tasks)


def _engine(store: Store) -> PostgresEngine:
    engine = store._engine
    assert isinstance(engine, PostgresEngine)
    return engine


def lanes(bench: Bench) -> None:
    jobs = bench.size(6_400, 64)
    contenders = {"64 tasks": _trio(enqueuers, 64, jobs), "64 tasks, each alone": _trio(enqueuers, 64, jobs, True)}
    samples = bench.run("enqueueing one at a time, per job", contenders, 7)
    samples.ratio("64 tasks, each alone", "64 tasks", "at least 5")


async def told(dsn: str, jobs: int, silent: bool) -> float:
    """The worker is of another queue, so that it works as little in one case as in the other."""
    async with (
        open_postgres(dsn) as store,
        open_postgres(dsn) as other,
        anyio.create_task_group() as tasks,
    ):
        if silent:
            _engine(store).voice.tell = lambda channels: None  # type: ignore[method-assign]
        await tasks.start(partial(other.queue("other").run_worker, _nothing))

        async def work() -> None:
            for _ in range(jobs // 32):
                await store.queue("q").enqueue(PAYLOAD)

        taken = await tasks_of(32, work)
        tasks.cancel_scope.cancel()
    return taken / (jobs // 32 * 32)


async def _nothing(job: Job) -> None:
    pass


def telling(bench: Bench) -> None:
    jobs = bench.size(12_800, 64)
    contenders = {"32 writers": _trio(told, jobs, False), "32 writers, telling nobody": _trio(told, jobs, True)}
    samples = bench.run("enqueueing one at a time, a worker of another store listening, per job", contenders, 9)
    samples.ratio("32 writers, telling nobody", "32 writers", "at least 0.9")


# Backlogs

_ROWS = """
insert into alkstore.jobs(queue_hash, queue, body, state, lane, due, priority, run_at, expires_at, attempts,
 max_attempts, visibility_timeout, base_backoff, worker_id, claim_expires_at, token, created_at)
select hashtextextended('q', 0),
 'q', '{}', %(state)s, %(lane)s, at, %(priority)s, at, case when %(expires)s then at end, %(state)s, 9, 300, 5,
 case when %(state)s = 1 then 'gone' end, case when %(state)s = 1 then at end, %(state)s, at
from (select extract(epoch from clock_timestamp())::float8 + %(offset)s as at) as clock, generate_series(1, %(n)s)"""


def _rows(dsn: str, n: int, **columns: Any) -> None:
    params = {"state": 0, "lane": 1, "priority": 0, "offset": -1.0, "expires": False}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_ROWS, params | columns | {"n": n})
        connection.execute("vacuum analyze alkstore.jobs")


async def _made(dsn: str) -> float:
    async with open_postgres(dsn):
        return 0.0


async def some_claims(dsn: str, claims: int) -> float:
    async with open_postgres(dsn) as store:
        queue = store.queue("q")
        await queue.claim("worker")
        started = _wall()
        for _ in range(claims):
            assert await queue.claim("worker") is not None
        return (_wall() - started) / claims


def claims(bench: Bench) -> None:
    few, many, beside, dead = (200, 2_000, 500, 600) if bench.quick else (1_000, 1_000_000, 100_000, 60_000)
    places: dict[str, str] = {}
    samples = Samples("a claim, per job")
    with ExitStack() as stack:

        def place(name: str) -> str:
            dsn = places[name] = stack.enter_context(bench.database())
            _trio(_made)(dsn)
            return dsn

        first, most = f"{few:,} pending", f"{many:,} pending"
        _rows(place(first), few)
        _rows(place(most), many)
        delayed, grave = f"{few:,}, {beside:,} delayed", f"{few:,}, {dead:,} dead"
        _rows(place(delayed), beside, lane=0, priority=9, offset=1e6)
        _rows(places[delayed], few)
        _rows(place(grave), dead, offset=-9.0)
        snapshot = stack.enter_context(psycopg.connect(places[grave]))
        snapshot.execute("set transaction isolation level repeatable read")
        snapshot.execute("select count(*) from alkstore.jobs")
        with psycopg.connect(places[grave], autocommit=True) as connection:
            connection.execute("delete from alkstore.jobs")
        _rows(places[grave], few)
        rounds = bench.size(3, 1)
        for name in turns(places, rounds):
            samples.add(name, _trio(some_claims, (few - 10) // rounds - 10)(places[name]))
    samples.times()
    for name in (most, delayed, grave):
        samples.ratio(name, first, "at most 1.5")


async def first_claim(dsn: str, rows: int, columns: dict[str, Any]) -> float:
    await _made(dsn)
    await anyio.to_thread.run_sync(partial(_rows, dsn, rows, **columns))
    async with open_postgres(dsn) as store:
        started = _wall()
        await store.queue("q").claim("worker")
        return (_wall() - started) / rows


def moves(bench: Bench) -> None:
    rows = bench.size(100_000, 600)
    contenders = {
        "come due": _trio(first_claim, rows, {"lane": 0}),
        "lapse": _trio(first_claim, rows, {"lane": 0, "state": 1}),
        "expire": _trio(first_claim, rows, {"expires": True}),
    }
    bench.run(f"the claim that finds {rows:,} rows which time has moved, per row: at most 15 us", contenders, 3)


# Streams and wakes


async def publish(dsn: str, events: int, batch: int) -> float:
    async with open_postgres(dsn) as store:
        stream = store.stream("s")

        async def work() -> None:
            for _ in range(events // _TASKS // batch):
                if batch == 1:
                    await stream.publish(PAYLOAD)
                else:
                    await stream.publish_many([PAYLOAD] * batch)

        return await tasks_of(_TASKS, work) / events


def pgbench(program: Path, events: int, batch: int, dsn: str) -> float:
    _trio(_made)(dsn)
    text, names = sql.compiled(sql.PUBLISH, _SCHEMA)
    script = re.sub(r"\$(\d+)", lambda number: f":{names[int(number[1]) - 1]}", text)
    body = encode(PAYLOAD).replace('"', '\\"')
    given = {
        "stream": "s",
        "keys": f"{{{','.join(['null'] * batch)}}}",
        "bodies": "{" + ",".join([f'"{body}"'] * batch) + "}",
    }
    defined = [part for name, value in given.items() for part in ("-D", f"{name}={value}")]
    each = events // _TASKS // batch
    counts = ["-c", str(_TASKS), "-j", "1", "-t", str(each)]
    ended = subprocess.run(
        [program, "-n", "-M", "prepared", *counts, *defined, "-f", "-", dsn],
        input=script.replace(":clock::", "null::"),
        env={**os.environ, "PGOPTIONS": "-c plan_cache_mode=force_generic_plan -c jit=off"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"tps = ([\d.]+)", ended.stdout)
    assert found is not None, ended.stdout
    return 1 / float(found[1]) / batch


def publishing(bench: Bench) -> None:
    program = find_binaries() / "pgbench"
    for batch, full in (1, 8_000), (_EVENTS, 80_000):
        events = bench.size(full, _TASKS * batch)
        contenders: dict[str, Measured] = {f"publish {batch}": _trio(publish, events, batch)}
        if program.exists():
            contenders[f"pgbench {batch}"] = partial(pgbench, program, events, batch)
        samples = bench.run(f"8 tasks, {batch} to one stream at a time, per event", contenders, 5)
        if program.exists():
            samples.ratio(f"pgbench {batch}", f"publish {batch}", "at least 0.8")


async def _woken(times: int, wakes: AsyncIterator[object], fire: Callable[[], Awaitable[float]]) -> float:
    """From when a wake was fired, as the firing has it, until a task that waits for it runs: the median."""
    taken: list[float] = []
    at = 0.0
    heard = anyio.Event()

    async def listen() -> None:
        nonlocal at
        async for _ in wakes:
            at = _wall()
            heard.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        for _ in range(times):
            await anyio.sleep(0.01)  # then the next one is told at once
            heard = anyio.Event()
            since = await fire()
            await heard.wait()
            taken.append(at - since)
        tasks.cancel_scope.cancel()
    return median(taken)


async def bare_wake(dsn: str, times: int) -> float:
    async with (await Bare.connect(dsn)).connection as listener, (await Bare.connect(dsn)).connection as one:
        await listener.execute("listen bench")

        async def fire() -> float:
            started = _wall()
            await one.execute("select pg_notify('bench', '')", prepare=True)
            return started

        return await _woken(times, listener.notifies(), fire)


async def notify_wake(dsn: str, times: int) -> float:
    async with open_postgres(dsn) as one, open_postgres(dsn) as other, other.listen("c") as wakes:

        async def fire() -> float:
            started = _wall()
            await one.notify("c")
            return started

        return await _woken(times, wakes, fire)


async def queue_wake_after(dsn: str, times: int) -> float:
    """What workers wait for, from when the enqueue has returned: it is told after its commit."""
    async with open_postgres(dsn) as one, open_postgres(dsn) as other:
        with bell_on(_engine(other), queue_wake("q")) as bell:

            async def rings() -> AsyncIterator[None]:
                while True:
                    await bell.arm().wait()
                    yield

            async def fire() -> float:
                await one.queue("q").enqueue(PAYLOAD)
                return _wall()

            return await _woken(times, rings(), fire)


def wakes(bench: Bench) -> None:
    times = bench.size(500, 5)
    contenders = {
        "psycopg's LISTEN": _asyncio(bare_wake, times),
        "notify": _trio(notify_wake, times),
        "enqueue": _trio(queue_wake_after, times),
    }
    samples = bench.run("from a commit to a task of another store's that waits, the median", contenders, 7)
    samples.ratio("notify", "psycopg's LISTEN", "at most 1.5")
    samples.ratio("enqueue", "psycopg's LISTEN", "at most 1.5")


async def _idling(dsn: str, ended: Callable[[], int], settling: float, seconds: float) -> tuple[float, int]:
    """The share of a core, and the statements."""
    async with open_postgres(dsn) as store, AsyncExitStack() as stack:
        for number in range(100):
            await stack.enter_async_context(store.listen(f"c{number}"))
        await anyio.sleep(settling)
        before, started = ended(), time.process_time()
        await anyio.sleep(seconds)
        return (time.process_time() - started) / seconds, ended() - before


def idle(bench: Bench) -> None:
    """A session that is idle tells of its statements within 10 seconds."""
    settling, seconds = bench.size(15, 0), bench.size(120, 1)
    print(f"\nidle with 100 listeners for {seconds} s: under 0.5 % of a core")
    with bench.database() as dsn, psycopg.connect(bench.server.dsn, autocommit=True) as connection:
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]

        def ended() -> int:
            query = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
            [(number,)] = connection.execute(query, (name,)).fetchall()
            return int(number)

        connection.execute("alter system set autovacuum = off")  # whose statements would be counted
        connection.execute("select pg_reload_conf()")
        try:
            busy, statements = trio.run(_idling, dsn, ended, settling, seconds)
        finally:
            connection.execute("alter system reset autovacuum")
            connection.execute("select pg_reload_conf()")
    print(f"  {'processor':56} {busy * 100:9.2f} %\n  {'statements':56} {statements * 60 / seconds:9.2f} a minute")


GROUPS: dict[str, Callable[[Bench], None]] = {
    "verbs": verbs,
    "drain": one_by_one,
    "worker": workers,
    "batches": batches,
    "lanes": lanes,
    "telling": telling,
    "claims": claims,
    "moves": moves,
    "publish": publishing,
    "wakes": wakes,
    "idle": idle,
}


def main(*, quick: bool, only: str | None = None, peers: str | None = None) -> None:
    with Server(fsync=True) as server:
        bench = Bench(server, quick, peers)
        for name in GROUPS if only is None else (only,):
            GROUPS[name](bench)
            print(f"  load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny size: shows that the script works, no more")
    parser.add_argument("--only", choices=GROUPS, help="one group of rows")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has the other queues")
    main(**vars(parser.parse_args()))
