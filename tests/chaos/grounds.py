"""Where a run takes place, by engine: who acts, how a fault befalls them, and what stands in the end."""

import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen
from typing import Any, Protocol

import anyio
import anyio.to_thread
import attrs
import psycopg

from alkstore_trio import Outbox, Queue, Store, open_memory, open_postgres, open_sqlite
from alkstore_trio._rules.names import RESERVED_PREFIX
from tests.engines.children import all_jobs
from tests.proxy import Proxy, proxy
from tests.servers import Server

from .actors import LEASE, Actor, prepare
from .checker import Left
from .history import Recorder
from .plan import Engine, Fault
from .world import World

__all__ = ["GROUNDS", "Ground"]

_PROCESSES = 3
_TAIL = 2_000  # characters of what one who crashed has said
_ROOM = 4_096  # bytes that are left to whom a file may not grow for


class Ground(Protocol):
    """Where a run takes place."""

    actors: list[str]
    boundaries: dict[str, float]
    crashed: list[str]  # who has ended without being made to

    async def befall(self, fault: Fault) -> None:
        """Have a fault happen, until it is over."""
        ...

    def heal(self) -> None:
        """End whatever may still be going on."""
        ...

    async def left(self) -> Left:
        """End all who act, and say what stands."""
        ...


async def _left(store: Store) -> Left:
    queues = [name for name in await store.queues() if not name.startswith(RESERVED_PREFIX)]
    backlogs: list[Queue | Outbox] = [*map(store.queue, queues), store.outbox("letters")]
    jobs: dict[str, list[dict[str, Any]]] = {}
    for backlog in backlogs:
        for job in await all_jobs(backlog):
            row = {"id": job.id, "uid": job.payload, "state": job.state.value, "created": job.created_at}
            jobs.setdefault(job.queue, []).append(row)
    stream = store.stream("events")
    events = [(event.offset, event.payload) for event in await stream.read_since(0, 10_000_000)]
    return Left(jobs, events, dict((await stream.statistics()).consumers))


class _Common:
    """What any run has."""

    def __init__(self, folder: Path, seed: int, decides: bool = True) -> None:
        self.folder = folder
        self.world = World(folder / "world", decides)
        self.seed = seed
        self.actors: list[str] = [f"p{n}" for n in range(_PROCESSES)]
        self.boundaries: dict[str, float] = {}
        self.crashed: list[str] = []
        self._furthest = self._ahead = 0.0
        self._born = 0

    def name(self, stable: str) -> str:
        self._born += 1
        return f"{stable}-{self._born}"

    async def befall(self, fault: Fault) -> None:
        match fault.kind:
            case "step":
                self._step(fault.seconds)
            case "drop wakes" | "spurious wakes":
                self.world.have_wakes("dropped" if fault.kind == "drop wakes" else "spurious")
                await anyio.sleep(fault.lasts)
                self.world.have_wakes("as they come")
            case _:
                raise NotImplementedError(fault.kind)

    def _step(self, seconds: float) -> None:
        self._ahead += seconds
        self._furthest = max(self._furthest, self._ahead)
        self.world.step(seconds)

    def heal(self) -> None:
        self.world.have_wakes("as they come")
        # To where nothing that was stamped ahead of the time is to be waited for.
        self._step(self._furthest - self._ahead + 10 * LEASE)


class _Memory(_Common):
    """One store, and groups of tasks that stand for processes."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.store: Store
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._over = False
        self._ended = {stable: anyio.Event() for stable in self.actors}

    async def act(self, stable: str) -> None:
        """Act until all is over."""
        while not self._over:
            name = self.name(stable)
            with anyio.CancelScope() as scope, (self.folder / f"{name}.jsonl").open("ab") as file:
                self._scopes[stable] = scope
                record = Recorder(name, file.fileno())
                await Actor(self.store, record, self.world, name, stable, Random(f"{self.seed} {name}")).act()
        self._ended[stable].set()

    async def befall(self, fault: Fault) -> None:
        if fault.kind == "kill":
            self._scopes[self.actors[fault.target % _PROCESSES]].cancel()
        else:
            await super().befall(fault)

    async def left(self) -> Left:
        self._over = True
        for stable in self.actors:
            self._scopes[stable].cancel()
            await self._ended[stable].wait()
        return await _left(self.store)


@asynccontextmanager
async def _memory(folder: Path, seed: int) -> AsyncIterator[Ground]:
    ground = _Memory(folder, seed)
    ground.world.meddle()
    async with open_memory(clock=ground.world.clock) as ground.store, anyio.create_task_group() as tasks:
        ground.boundaries = await prepare(ground.store)
        for stable in ground.actors:
            tasks.start_soon(ground.act, stable)
        yield ground


@attrs.frozen
class _Process:
    name: str
    itself: Popen[bytes]
    writer: Popen[bytes]  # of its history, which no limit and no kill of the other's holds up


class _Processes(_Common):
    """Processes that act on one file or server; one that was killed has another in its place at once."""

    engine: Engine

    def __init__(self, folder: Path, seed: int, decides: bool) -> None:
        super().__init__(folder, seed, decides)
        self._processes: dict[str, _Process] = {}

    def where(self) -> str:
        raise NotImplementedError

    def open(self) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError

    async def start(self) -> None:
        async with self.open() as store:
            self.boundaries = await prepare(store)
        for stable in self.actors:
            self._spawn(stable)

    def _spawn(self, stable: str) -> None:
        name = self.name(stable)
        loop = ["trio", "asyncio"][self._born % 2]
        command = [sys.executable, "-m", "tests.chaos.actors", self.engine, self.where(), str(self.folder), name]
        command += [stable, f"{self.seed} {name}", loop]
        with (self.folder / f"{name}.jsonl").open("wb") as history, (self.folder / f"{name}.err").open("wb") as errors:
            writer = Popen(["cat"], stdin=PIPE, stdout=history)
            itself = Popen(command, stdin=PIPE, stdout=writer.stdin, stderr=errors)
        assert writer.stdin is not None
        writer.stdin.close()
        self._processes[stable] = _Process(name, itself, writer)

    def _end(self, stable: str) -> None:
        process = self._processes.pop(stable)
        if process.itself.poll() is not None:
            words = (self.folder / f"{process.name}.err").read_text()
            self.crashed.append(f"crashed: {process.name}: {words[-_TAIL:]}")
        process.itself.kill()
        process.itself.communicate()
        process.writer.wait()

    async def befall(self, fault: Fault) -> None:
        stable = self.actors[fault.target % _PROCESSES]
        match fault.kind:
            case "kill":
                self._end(stable)
                self._spawn(stable)
            case "stop":
                process = self._processes[stable].itself
                process.send_signal(signal.SIGSTOP)
                await anyio.sleep(fault.lasts)
                process.send_signal(signal.SIGCONT)
            case _:
                await super().befall(fault)

    def heal(self) -> None:
        super().heal()
        for stable, process in tuple(self._processes.items()):
            if process.itself.poll() is not None:
                self._end(stable)
                self._spawn(stable)

    async def left(self) -> Left:
        self.end()
        async with self.open() as store:
            return await _left(store)

    def end(self) -> None:
        for stable in tuple(self._processes):
            self._end(stable)


class _Sqlite(_Processes):
    engine: Engine = "sqlite"

    def where(self) -> str:
        return str(self.folder / "store.db")

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_sqlite(self.where(), clock=self.world.clock)

    async def befall(self, fault: Fault) -> None:
        if fault.kind != "no space":
            await super().befall(fault)
            return
        self._allow(os.stat(self.where()).st_size + _ROOM)
        await anyio.sleep(fault.lasts)
        self._allow(resource.RLIM_INFINITY)

    def _allow(self, size: int) -> None:
        """Let no file grow past a size in any of the processes."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                resource.prlimit(process.itself.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def heal(self) -> None:
        super().heal()
        self._allow(resource.RLIM_INFINITY)


class _Postgres(_Processes):
    engine: Engine = "postgres"

    def __init__(self, folder: Path, seed: int, server: Server, between: Proxy) -> None:
        super().__init__(folder, seed, decides=False)
        self._server = server
        self._between = between
        self._restarting = anyio.Lock()

    def where(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._between.port}/postgres?sslmode=disable&application_name=actor"

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_postgres(self._server.dsn, schema="chaos")

    async def befall(self, fault: Fault) -> None:
        match fault.kind:
            case "cut":
                self._between.cut()
            case "half-open":
                self._between.half_open()
                await anyio.sleep(fault.lasts)
                self._between.cut()  # else who waits for an answer waits for good, and rightly so
                self._between.resume()
            case "stall":
                self._between.stall()
                await anyio.sleep(fault.lasts)
                self._between.resume()
            case "terminate":
                await anyio.to_thread.run_sync(self._terminate, fault.target)
            case "restart":
                async with self._restarting:
                    await anyio.to_thread.run_sync(self._server.stop, "immediate")
                    await anyio.sleep(fault.lasts)
                    await anyio.to_thread.run_sync(self._server.start)
            case _:
                await super().befall(fault)

    def _terminate(self, target: int) -> None:
        with suppress(psycopg.Error), psycopg.connect(self._server.dsn, autocommit=True) as connection:
            pids = connection.execute("select pid from pg_stat_activity where application_name = 'actor'").fetchall()
            if pids:
                connection.execute("select pg_terminate_backend(%s)", pids[target % len(pids)])

    def heal(self) -> None:
        super().heal()
        self._between.resume()


@asynccontextmanager
async def _sqlite(folder: Path, seed: int) -> AsyncIterator[Ground]:
    ground = _Sqlite(folder, seed, decides=True)
    await ground.start()
    try:
        yield ground
    finally:
        ground.end()


@asynccontextmanager
async def _postgres(folder: Path, seed: int) -> AsyncIterator[Ground]:
    with Server(fsync=True) as server:
        async with proxy(server.socket) as between:
            ground = _Postgres(folder, seed, server, between)
            await ground.start()
            try:
                yield ground
            finally:
                ground.end()


GROUNDS: dict[Engine, Callable[[Path, int], AbstractAsyncContextManager[Ground]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
}
