"""The engine: what a store asks of a file, from the loop's side.

It owns the threads and the hints, gives out job ids, and knows which transaction holds the writer. It never touches the
database itself, so the loop never waits for it.
"""

import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

import anyio

from ... import _ops as ops
from ..._engine import Traits
from ..._errors import Closed, DatabaseError
from ..._loop import Event, Turns, asking_task, call_soon_threadsafe, event_class, insist, unbroken
from ..._ops import Op
from ..._rules.bounds import reading
from ..._wake import Hub
from .. import sqlops
from .file import File, Session
from .ids import BLOCK, Ids
from .joined import JoinedSqlite
from .peers import POKE, HashedHub, Hint, Peers
from .readers import Readers
from .requests import Hold, Request, Work, doing, nobody, nothing
from .tx import SqliteTx
from .writer import Writer

__all__ = ["SqliteEngine"]

A = TypeVar("A")

log = logging.getLogger("alkstore_trio")

_SAFETY_POLL = 1.0  # seconds after which a lost hint is made up for
_BLIND_POLL = 0.05  # the same where there are no hints
_JOINED_FOR = 30.0  # seconds for which an application's transaction that was joined is watched
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.02  # seconds between two looks meanwhile
_LONGEST_COMMIT = 60.0  # seconds that may lie between a wake's instant and its commit
_PREFETCH = 8  # jobs that a worker has one commit claim ahead


class SqliteEngine:
    """A store's file, threads and hints; see `Engine`."""

    traits = Traits(
        counts_wakes=False,
        discarded_ids_are_gaps=False,
        serializes_publishers=True,
        serializes_writers=True,
        notify_limit=None,
        has_sql=True,
        durable=True,
        many_processes=True,
        clock_is_local=True,
    )
    prefetch = _PREFETCH

    def __init__(self, file: File, clock: Callable[[], float] | None) -> None:
        self.file = file
        hub = HashedHub()
        self.hub: Hub = hub
        self._marks = hub.marks
        self.sleep: Callable[[float], Awaitable[object]] | None = getattr(clock, "sleep", None)
        self.holder: Hold | None = None  # the transaction that holds the writer
        self.origin, self.joined = _origin(), _origin()  # of wakes by this store's commits, and by those that it joined
        self.joined_wakes = count(1)
        self.peers = Peers(file.path, file.prefix, f"{os.getpid()}-{self.origin:x}")
        self.ids = Ids(self._reserve, self._ask_for_ids)
        self._clock = clock
        self._turns = Turns()
        self.checkpoint = self._turns.checkpoint
        self._call_soon = call_soon_threadsafe()
        self._finished: deque[Request] = deque()
        self._writer = Writer(file, self.origin, self.peers, self.post)
        self._readers = Readers(file, self.post)
        self._event = event_class()
        self._ends: list[Event] = []  # of the readers, and of the task that hears
        self._writer_ended = self._event()
        self._process = os.getpid()
        self._closed = False
        self._hearing = anyio.CancelScope()
        self._seen: dict[int, int] = {}  # of the wakes in the file, the last of each origin
        self._prunings = 0
        self._looked_at = 0.0  # unix time
        self._joined_until = 0.0  # by the monotonic clock

    def __repr__(self) -> str:
        return f"<SqliteEngine on {self.file.path!r}>"

    @property
    def engine(self) -> "SqliteEngine":
        return self

    # Opening and closing

    async def open(self) -> None:
        """Start the threads on the file, or say why not."""
        self.now()  # in the loop first: a clock may have to learn which loop it follows
        opening = Request(self._listening, self._event())
        self._writer.start(opening, Request(nothing, self._writer_ended))
        try:
            await opening.done.wait()
            if opening.error is not None:
                raise opening.error
            self._take_in(opening.answer)
            self.peers.open()
            self._readers.start(self._ending)
        except BaseException:
            self._closed = True
            self._readers.close()
            await unbroken(self._end)
            raise

    def _ending(self) -> Request:
        """What a reader posts when it ends."""
        self._ends.append(self._event())
        return Request(nothing, self._ends[-1])

    async def aclose(self) -> None:
        if os.getpid() != self._process:  # a fork has no threads to end, and the file is its parent's
            return
        if not self._closed:
            self._closed = True
            self.hub.close()
            self._hearing.cancel()
            self._readers.close()
        await unbroken(self._end)

    async def _end(self) -> None:
        """End the writer after all others: of connections that close side by side none tidies up the WAL."""
        for event in self._ends:
            await event.wait()
        self._writer.unused.extend(self.ids.empty())
        self._writer.close()
        await self._writer_ended.wait()
        self._writer.join()
        self._readers.join()
        self.peers.close()

    def check_open(self) -> None:
        if self._closed:
            raise Closed
        if os.getpid() != self._process:
            raise RuntimeError(
                f"the store on {self.file.path!r} was opened before a fork: open one of its own in the child process"
            )

    # The unit

    def now(self) -> float:
        """The store's clock. What is not staged reads it in a thread, where it has waited for all that it waits for."""
        return time.time() if self._clock is None else reading(self._clock())

    async def idle(self) -> None:
        self.check_open()
        await self.checkpoint()

    async def do(self, op: Op[A]) -> A:
        self.check_open()
        await self._turns.check()
        answer: A
        if isinstance(op, ops.ReadClock):
            clock: Any = self.now()
            answer = clock
            return answer
        if isinstance(op, ops.Read):
            return await self.read(op)
        self.refuse_to_wait_for_oneself()
        if n := sqlops.ids_of(op):
            ids = self.ids.take(n) or await self.ids.get(n)
            answer = await self.ask(self.submit, doing(op, self.now, ids), op.wakes, partial(self._withdraw, ids))
        else:
            answer = await self.ask(self.submit, doing(op, self.now), op.wakes)
        return answer

    async def begin(self) -> SqliteTx:
        await self.idle()
        self.check_open()
        return SqliteTx(self, asking_task(), anyio.get_current_task().name or "?")

    def join(self, connection: object) -> JoinedSqlite:
        if not isinstance(connection, sqlite3.Connection):
            raise TypeError(f"join takes an sqlite3.Connection here, not {type(connection).__name__}")
        return JoinedSqlite(self, connection)

    # Requests

    async def read(self, op: Op[A]) -> A:
        """The answer of a reader."""
        answer: A = await self.ask(self._readers.submit, doing(op, self.now))
        return answer

    def submit(self, request: Request) -> None:
        """Have the writer do a request."""
        self._writer.submit(request)

    async def ask(
        self,
        submit: Callable[[Request], object],
        work: Work,
        wakes: Callable[[Any], Iterable[str]] = nobody,
        withdraw: Callable[[Request], bool] = Request.take,
        **options: Any,
    ) -> Any:
        """What some work comes to. Cancelled, it never was if ``withdraw`` succeeds; otherwise it is waited for."""
        done = self._event()
        request = Request(work, done, wakes, **options)
        submit(request)
        try:
            await done.wait()
        except BaseException as interruption:
            if withdraw(request):
                raise
            await insist(done, interruption)
        if request.error is not None:
            raise request.error
        return request.answer

    def _withdraw(self, ids: Sequence[int], request: Request) -> bool:
        """Withdraw a request, and with it the ids that it was to use."""
        withdrawn = request.take()
        if withdrawn:
            self.ids.put_back(ids)
        return withdrawn

    def break_off(self, request: Request) -> bool:
        """Withdraw a request, or have the statement that it is at end with an error."""
        withdrawn = request.take()
        if not withdrawn:
            self._writer.interrupt(request)
        return withdrawn

    def post(self, requests: Sequence[Request]) -> None:
        """Hand finished requests to the loop; called in the threads."""
        self._finished.extend(requests)
        self._call_soon(self._deliver)

    def _deliver(self) -> None:
        finished = self._finished
        while finished:
            request = finished.popleft()
            if request.channels and request.error is None and self.hub.channels:
                self.hub.fire(request.channels)
            if request.settled is not None:
                request.settled(request)
            request.done.set()

    async def _reserve(self, n: int) -> None:
        await self.ask(self.submit, _reserving(n), settled=self._reserved)

    def _reserved(self, request: Request) -> None:
        if request.error is None:
            self.ids.add(request.answer)

    def _ask_for_ids(self) -> None:
        self.submit(Request(_reserving(BLOCK), self._event(), settled=self._answered))

    def _answered(self, request: Request) -> None:
        self.ids.asked = False
        self._reserved(request)

    # Who holds the writer

    def refuse_to_wait_for_oneself(self) -> None:
        """A write that would wait for a transaction of the same task would wait for ever."""
        if self.holder is not None and self.holder.task == asking_task():
            raise RuntimeError(
                "an open transaction of this task holds the writer since it published or executed: write inside it, "
                "or after it has ended"
            )

    def freed(self, hold: Hold) -> None:
        """A transaction holds the writer no longer."""
        if self.holder is hold:
            self.holder = None

    def abandon(self, hold: Hold) -> None:
        """A transaction that holds the writer was collected as garbage, perhaps in another thread."""
        hold.discard()
        self._call_soon(partial(self.freed, hold))

    # Wakes of other stores

    async def hear(self) -> None:
        """Wake whoever other stores have woken, until closed."""
        if self._closed:
            return
        ended = self._event()
        self._ends.append(ended)
        try:
            with self._hearing:
                await self._hear()
        except Closed:
            pass
        finally:
            ended.set()

    async def _hear(self) -> None:
        look, due = _FIRST_LOOK, 0.0
        while True:
            now = time.monotonic()
            if now >= due:
                await self._look()
                now = time.monotonic()
                due = now + (_SAFETY_POLL if self.peers.descriptor is not None else _BLIND_POLL)
                if now < self._joined_until:
                    due = min(due, now + look)
                    look = min(look * 2, _LAST_LOOK)
            hints = await self._hinted(due - now)
            if hints is None:
                due = 0.0
                continue
            for hint in hints:
                if hint == POKE:
                    self.watch_joined()
                    look, due = _FIRST_LOOK, 0.0
                elif not self._follow(*hint):
                    due = 0.0

    def _follow(self, marked: bytes, origin: int, seq: int) -> bool:
        """Wake whom a hint concerns; false where that takes a look, since some before it was missed."""
        channel = self._marks.get(marked)
        known = self._seen.get(origin, 0)
        if origin and known <= seq <= known + 1:
            self._seen[origin] = seq
            if channel is not None:
                self.hub.fire((channel,))
            return True
        return channel is None

    def watch_joined(self) -> None:
        """An application's own transaction holds wakes: look often for a while."""
        self._joined_until = time.monotonic() + _JOINED_FOR

    async def _hinted(self, seconds: float) -> list[Hint] | None:
        """The hints that come within some time; ``None``: there is reason to look whatever they are."""
        descriptor = self.peers.descriptor
        with anyio.move_on_after(seconds):
            if descriptor is None:
                await anyio.sleep_forever()
            else:
                await anyio.wait_readable(descriptor)
                return self.peers.read()
        return []

    def _listening(self, session: Session) -> sqlops.Heard:
        return session.run(sqlops.heard(self.origin))

    async def _look(self) -> None:
        looked_at = self._looked_at
        try:
            heard: sqlops.Heard = await self.ask(self._readers.submit, self._listening)
        except DatabaseError as error:
            log.warning("looking for wakes: %s; trying again", error)
            return
        pruned = heard.prunings != self._prunings and heard.pruned_until > looked_at - _LONGEST_COMMIT
        channels = self._take_in(heard)
        if pruned:
            self.hub.reconnected()
        else:
            self.hub.fire(channels)

    def _take_in(self, heard: sqlops.Heard) -> list[str]:
        """The channels that were woken since the last time."""
        seen, self._seen = self._seen, {}
        channels = []
        for channel, origin, seq in heard.wakes:
            known = seen.get(origin, 0)
            if seq > known:
                channels.append(channel)
            self._seen[origin] = max(seq, known, self._seen.get(origin, 0))
        self._prunings = heard.prunings
        self._looked_at = time.time()
        return channels


def _origin() -> int:
    """A number that no other store has, as SQLite takes it."""
    return uuid4().int >> 65


def _reserving(n: int) -> Work:
    return lambda session: session.run(sqlops.reserve(n))
