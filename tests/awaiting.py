"""An engine like those to come, over memory's: what passes the suite on it needs no rewrite for a real one.

It awaits in every verb, before its effect and after it; its writes go through one writer, which a transaction that has
published holds until it ends; it coalesces wakes; and nobody but itself can read its clock.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import anyio
import attrs
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint

from alkstore_trio import DatabaseError, Store
from alkstore_trio._engines.memory import MemoryEngine, MemoryTx
from alkstore_trio._loop import call_soon_threadsafe, unbroken
from alkstore_trio._open import open_engine
from alkstore_trio._ops import Op, Publish, Read
from alkstore_trio._wake import Hub

A = TypeVar("A")

BUSY_TIMEOUT = 30.0  # seconds; nothing in the suite waits so long


def open_awaiting(*, clock: Callable[[], float] | None = None) -> AbstractAsyncContextManager[Store]:
    return open_engine(lambda: AwaitingEngine(clock))


class CoalescingHub(Hub):
    """Holds wakes back until it is flushed, each channel once."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, None] = {}

    def fire(self, channels: Iterable[str]) -> None:
        self._pending.update(dict.fromkeys(channels))

    def flush(self) -> None:
        pending, self._pending = self._pending, {}
        super().fire(pending)


class Writer:
    """Who may write: nobody else while somebody holds it."""

    def __init__(self) -> None:
        self._holder: object | None = None
        self._task: int | None = None
        self._freed = anyio.Event()

    def held_by(self, holder: object) -> bool:
        return self._holder is holder

    async def acquire(self, holder: object, task: int) -> None:
        with anyio.move_on_after(BUSY_TIMEOUT):
            while self._holder is not None:
                if self._task == anyio.get_current_task().id:
                    raise RuntimeError(
                        "this task holds the writer in an open transaction: its write would wait for itself"
                    )
                await self._freed.wait()
            self._holder, self._task = holder, task
            return
        raise DatabaseError(f"the writer is held by a transaction of task {self._task}", transient=True)

    def release(self, holder: object) -> None:
        if self._holder is holder:
            self._holder = self._task = None
            self._freed.set()
            self._freed = anyio.Event()


class AwaitingEngine:
    prefetch = 2

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self.wakes = CoalescingHub()
        self.hub: Hub = self.wakes
        self.inner = MemoryEngine(self.hub, clock)
        self.sleep: Callable[[float], Awaitable[object]] | None = self.inner.sleep
        self.writer = Writer()
        self.call_soon = call_soon_threadsafe()
        self.traits = attrs.evolve(
            self.inner.traits,
            counts_wakes=False,
            serializes_publishers=True,
            serializes_writers=True,
            notify_limit=7_999,
        )

    @property
    def engine(self) -> "AwaitingEngine":
        return self

    async def do(self, op: Op[A]) -> A:
        self.check_open()
        await checkpoint()
        if isinstance(op, Read):
            return await self.effect(self.inner.do, op)
        holder = object()
        await self.writer.acquire(holder, anyio.get_current_task().id)
        try:
            return await self.effect(self.inner.do, op)
        finally:
            self.writer.release(holder)

    async def effect(self, verb: Callable[..., Awaitable[A]], *arguments: Any) -> A:
        """Once begun it is waited for, whatever happens to the caller."""

        async def begun() -> A:
            await checkpoint()
            answer = await verb(*arguments)
            await cancel_shielded_checkpoint()
            self.wakes.flush()
            return answer

        return await unbroken(begun)

    async def idle(self) -> None:
        await self.inner.idle()

    async def checkpoint(self) -> None:
        await self.inner.checkpoint()

    def check_open(self) -> None:
        self.inner.check_open()

    async def begin(self) -> "AwaitingTx":
        await checkpoint()
        return AwaitingTx(self, await self.inner.begin(), anyio.get_current_task().id)

    def join(self, connection: object) -> Any:
        return self.inner.join(connection)

    async def aclose(self) -> None:
        await self.inner.aclose()


class AwaitingTx:
    def __init__(self, engine: AwaitingEngine, inner: MemoryTx, task: int) -> None:
        self._engine = engine
        self._inner = inner
        self._task = task
        self._holder = object()

    def __del__(self) -> None:
        engine, holder = self._engine, self._holder
        del self._inner  # it posts its own discard, which comes first

        def free() -> None:
            engine.writer.release(holder)
            engine.wakes.flush()

        engine.call_soon(free)

    @property
    def engine(self) -> AwaitingEngine:
        return self._engine

    async def do(self, op: Op[A]) -> A:
        self._engine.check_open()
        await checkpoint()
        if isinstance(op, Publish):
            await self._take_writer()
        return await self._engine.effect(self._inner.do, op)

    async def _take_writer(self) -> None:
        if not self._engine.writer.held_by(self._holder):
            await self._engine.writer.acquire(self._holder, self._task)

    async def idle(self) -> None:
        await self._inner.idle()

    async def commit(self) -> None:
        self._engine.check_open()
        await checkpoint()
        await self._take_writer()
        try:
            await self._engine.effect(self._inner.commit)
        finally:
            self._engine.writer.release(self._holder)

    async def rollback(self) -> None:
        await self._inner.rollback()
        self._engine.writer.release(self._holder)
        self._engine.wakes.flush()

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return await self._inner.execute(sql, params)
