"""A transaction: staged like memory's until it does what cannot be staged, and from then on the one writer.

Staged, it is one short unit of a group commit, and nobody waits for it. A publish, whose offset is told at once, and a
statement of the caller's own take the writer: the staging is replayed into a real transaction, and all else goes there.
The threads never refer to a `SqliteTx`, so dropping it ends it.
"""

import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.lowlevel import checkpoint

from ... import _ops as ops
from ..._errors import DatabaseError
from ..._loop import TaskRef
from ..._ops import Op
from .. import sqlops
from ..execute import checked_statement, outlasts
from ..overlay import Staged, View, effects, staged
from .file import Session
from .ids import BLOCK, Pool
from .requests import Hold, Request, Work, doing, nothing

if TYPE_CHECKING:
    from .engine import SqliteEngine

__all__ = ["SqliteTx"]

A = TypeVar("A")


class SqliteTx:
    """An open transaction; see `TxUnit`."""

    __slots__ = ("_engine", "_failed", "_hold", "_ids", "_over", "_staged", "_task", "_view", "_who")

    def __init__(self, engine: "SqliteEngine", task: TaskRef | None, who: str) -> None:
        self._engine = engine
        self._task = task
        self._who = who
        self._staged: Staged | None = None
        self._view = View()
        self._hold: Hold | None = None
        self._ids = Pool()  # reserved by itself, while it holds the writer
        self._failed = False
        self._over = False  # whether it was rolled back, perhaps while another task was in a verb of it

    def __del__(self) -> None:
        if self._hold is not None:
            self._engine.abandon(self._hold)

    @property
    def engine(self) -> "SqliteEngine":
        return self._engine

    async def idle(self) -> None:
        await self._engine.idle()

    async def do(self, op: Op[A]) -> A:
        self._check()
        await self._engine.checkpoint()
        self._engine.check_open()
        answer: A
        now = self._engine.now()
        if self._hold is not None or isinstance(op, ops.Publish):
            answer = await self._really(self._doing(op, now))  # it is staged too, but for its wakes alone
        else:
            answer = await _STAGING[op.__class__](self, op)
        if isinstance(op, ops.Write):
            self._staged = staged(op, answer, now, self._staged)
        return answer

    def _check(self) -> None:
        self._engine.check_open()
        if self._failed:
            raise RuntimeError("a statement of the transaction has failed: it can only be rolled back")

    # Staged

    async def _enqueue(self, op: ops.Enqueue) -> list[int]:
        engine = self._engine
        if len(op.bodies) > engine.ids.left:
            engine.refuse_to_wait_for_oneself()
        return list(await engine.ids.get(len(op.bodies)))

    async def _notify(self, op: ops.Notify) -> None:
        return None

    async def _save_offset(self, op: ops.SaveOffset) -> bool:
        return op.offset > await self._saved(op.stream, op.consumer)

    async def _get_job(self, op: ops.GetJob) -> Any:
        return self._overlay().job(op.queue, op.id) or await self._engine.read(op)

    async def _get_offset(self, op: ops.GetOffset) -> int:
        return await self._saved(op.stream, op.consumer)

    async def _read_since(self, op: ops.ReadSince) -> Any:
        return await self._engine.read(op)

    async def _read_from_consumer(self, op: ops.ReadFromConsumer) -> Any:
        offset = await self._saved(op.stream, op.consumer)
        return await self._engine.read(ops.ReadSince(op.stream, offset, op.limit))

    async def _saved(self, stream: str, consumer: str) -> int:
        committed = await self._engine.read(ops.GetOffset(stream, consumer))
        return self._overlay().offset(stream, consumer, committed)

    def _overlay(self) -> View:
        self._view.catch_up(self._staged)
        return self._view

    # Real

    def _doing(self, op: Op[Any], now: float) -> Work:
        """The work of an op in the real transaction, with ids that nobody has to be waited for."""
        shared, own, n = self._engine.ids, self._ids, sqlops.ids_of(op)
        done = partial(doing, op, lambda: now)
        if not n:
            return done()
        if not own.left and (ids := shared.take(n)) is not None:
            return done(ids)
        for block in shared.empty():  # before those that are reserved now: ids keep the order of enqueueing
            own.add(block)

        def work(session: Session) -> Any:
            if n > own.left:
                own.add(session.run(sqlops.reserve(max(n - own.left, BLOCK))))
            return done(own.take(n) or ())(session)

        return work

    async def _really(self, work: Work, **options: Any) -> Any:
        """Do some work in the real transaction, which is begun with it if there is none."""
        engine, hold = self._engine, self._hold
        submit: Callable[[Request], object]
        if hold is None:
            engine.refuse_to_wait_for_oneself()
            hold = options["hold"] = Hold(self._task, self._who, engine.post)
            submit, work = engine.submit, _replayed(effects(self._staged), work)
        else:
            submit = hold.submit
        try:
            return await engine.ask(submit, work, **options)
        except BaseException:
            self._failed = hold.began and not hold.lives
            raise
        finally:
            if hold.lives and not self._over:
                self._hold = engine.holder = hold
            else:
                self._hold = None
                hold.discard()
                engine.freed(hold)

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self._check()
        checked_statement(sql)
        await self._engine.checkpoint()
        try:
            rows: list[tuple[Any, ...]] = await self._really(_executing(sql, params), withdraw=self._engine.break_off)
        except DatabaseError:
            await checkpoint()  # it may be broken off because its caller is cancelled
            raise
        return rows

    # The end

    async def commit(self) -> None:
        self._check()
        await self._engine.checkpoint()
        self._engine.check_open()
        record = effects(self._staged)
        channels = ops.wakes_of_end([(effect.write, effect.answer) for effect in record], ())
        if self._hold is not None:
            await self._really(nothing, wakes=lambda _: channels, settled=self._share_ids, ends=True)
        elif record:
            self._engine.refuse_to_wait_for_oneself()
            await self._engine.ask(
                self._engine.submit, lambda session: session.run(sqlops.merge(record)), lambda _: channels
            )

    def _share_ids(self, request: Request) -> None:
        if request.error is None:
            for block in self._ids.empty():
                self._engine.ids.add(block)

    async def rollback(self) -> None:
        self._over = True
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.discard()
            self._engine.freed(hold)


def _replayed(record: Sequence[Staged], work: Work) -> Work:
    """Some work after what was staged."""

    def both(session: Session) -> Any:
        session.run(sqlops.merge(record))
        return work(session)

    return both


def _executing(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> Work:
    """A statement of the caller's own; what does not even reach the database is a ``ValueError``."""
    changes = outlasts(sql)

    def work(session: Session) -> list[tuple[Any, ...]]:
        session.changed = session.changed or changes
        try:
            return session.query(sql, params)
        except (sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.Warning) as error:
            raise ValueError(f"the statement cannot be run: {error}") from error

    return work


_STAGING: dict[type[Op[Any]], Callable[[SqliteTx, Any], Coroutine[Any, Any, Any]]] = {
    ops.Enqueue: SqliteTx._enqueue,
    ops.Notify: SqliteTx._notify,
    ops.SaveOffset: SqliteTx._save_offset,
    ops.GetJob: SqliteTx._get_job,
    ops.GetOffset: SqliteTx._get_offset,
    ops.ReadSince: SqliteTx._read_since,
    ops.ReadFromConsumer: SqliteTx._read_from_consumer,
}
