"""One connection to a server: psycopg's, but for its waiting, which is the running loop's own.

Whatever interrupts a statement, it is driven to its end before anybody hears of it, so that the next statement finds
the protocol in step: an answer that was under way is returned, not thrown away, and no checkpoint follows it. Our own
statements go past psycopg's adapters, and theirs past ours. A connection is one task's at a time. Nothing here may
send a statement that nobody asked for.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from ..._loop import Socket, came_barely, cancel_later, unbroken
from .failures import NotConnected, check_driver, parsed

import psycopg  # isort: skip  # `failures` says what to do where it is missing
from psycopg import adapt, generators, pq  # isort: skip
from psycopg.conninfo import make_conninfo  # isort: skip

from .sockets import READ, either, ready_now  # isort: skip
from .wire import Plan  # isort: skip

check_driver()


def _unsplit(params: Any) -> list[Any]:
    return [params]


try:
    from psycopg._conninfo_attempts import conninfo_attempts
except ImportError:  # it has moved before; then libpq looks names up by itself, and the loop waits
    _split: Callable[[Any], list[Any]] = _unsplit
else:
    _split = conninfo_attempts

__all__ = ["AsyncAnyioConnection"]

_CANCEL_BOUND = 5.0  # seconds within which a statement that was called off must have come to its end
_GRACE = 0.03  # seconds that a statement which is called off has to come to its end by itself
_TURN = 0.005  # seconds that sending may keep the loop from other tasks
_CONNECT_TIMEOUT = 10.0  # seconds for each address
_DEFAULTS = {
    "application_name": "alkstore_trio",
    "keepalives_idle": "10",  # with these a half-open peer is found out in 25 seconds
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # milliseconds; keepalives are not sent while something is unacknowledged
}

_OK = pq.ConnStatus.OK
_BAD = pq.ConnStatus.BAD
_IDLE = pq.TransactionStatus.IDLE
_ACTIVE = pq.TransactionStatus.ACTIVE
_OFF = pq.PipelineStatus.OFF
_TUPLES_OK = pq.ExecStatus.TUPLES_OK
_COPIES = {pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT}
_FATAL_ERROR = pq.ExecStatus.FATAL_ERROR
_BINARY = pq.Format.BINARY
_STALE = {"26000", "0A000"}  # the server has forgotten a prepared statement, or its rows now have other types


def _answered(pgconn: pq.abc.PGconn) -> Generator[int, int, pq.abc.PGresult]:
    """What came of a statement that was handed to libpq."""
    results = yield from generators.execute(pgconn)
    result: pq.abc.PGresult = results[-1]
    if result.status == _FATAL_ERROR:
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
    return result


class AsyncAnyioConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection whose waiting is the running loop's, trio's or asyncio's; always auto-committing.

    `run` and `run_all` are for statements of the library's, `execute_own` for the application's.
    """

    def __init__(self, pgconn: pq.abc.PGconn, *args: Any) -> None:
        super().__init__(pgconn, *args)
        self.lock: Any = anyio.Lock(fast_acquire=True)  # psycopg's own is asyncio's
        self.prepare_threshold = None  # else psycopg sends a DEALLOCATE ALL, ours among them, after a rollback
        self.pooled = False  #: whether a pooler gives it another session for each transaction: nothing is prepared
        self._socket = Socket()
        self._plans: dict[str, Plan] = {}
        self._prepared_ever = 0
        self._conninfo = ""
        self._turn_ends = 0.0
        self._listens = False
        self._notes: deque[psycopg.Notify] = deque()
        self.lent = False  #: whether the application may have changed its session: nothing of ours is prepared in it
        self.uncertain = False  #: whether a statement was given up that may stand
        self._doomed = False  # whether the server has said good-bye
        self.add_notify_handler(self._note)  # for those that come with the answer of a statement
        self.add_notice_handler(self._notice)

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> "AsyncAnyioConnection":
        """A new connection; a `psycopg.OperationalError` if no address of the conninfo gives one."""
        params = {**_DEFAULTS, **parsed(conninfo), **options, "client_encoding": "UTF8"}
        timeout = float(params.get("connect_timeout") or _CONNECT_TIMEOUT)
        errors: list[str] = []
        for attempt in await _attempts(params):
            with anyio.move_on_after(timeout if timeout > 0 else None) as scope:
                try:
                    pgconn = await _connected(conninfo := make_conninfo("", **attempt))
                except psycopg.Error as error:
                    errors.append(" ".join(str(error).split()))
                    continue
                connection = cls(pgconn)
                connection._autocommit = True
                connection._conninfo = conninfo
                return connection
            if scope.cancelled_caught:
                errors.append(f"no answer from {attempt.get('hostaddr') or attempt.get('host')} in {timeout:g} seconds")
        raise NotConnected("; ".join(errors))

    # Statements

    async def run(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement of ours, with ``$1`` for parameters, whose types its text alone says."""
        async with self.lock:
            plan, result = await self._answer(sql, params)
            return plan.rows(result) if result.status == _TUPLES_OK else []

    async def run_all(self, script: str) -> None:
        """Run several statements of ours, which give no rows."""
        async with self.lock:
            self.pgconn.send_query(script.encode())
            await self._result()

    async def execute_own(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        """The rows of a statement of the application's, in psycopg's ways, but so that the server takes one only."""
        if params:
            cursor = psycopg.AsyncCursor(self)
            await cursor.execute(sql.encode(self.info.encoding), params)
            return await cursor.fetchall() if cursor.description is not None else []
        async with self.lock:  # psycopg would send a statement without parameters as a script
            self.pgconn.send_query_params(sql.encode(self.info.encoding), None)
            result = await self._result()
        if result.status in _COPIES:
            raise psycopg.ProgrammingError("COPY from or to the client is none of the statements that can be run here")
        transformer = adapt.Transformer(self)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    def renewed(self) -> None:
        """Its session is as it was before it was lent, with nothing prepared in it."""
        self._plans.clear()
        self.lent = False

    async def _answer(self, sql: str, params: Sequence[Any]) -> tuple[Plan, pq.abc.PGresult]:
        again = self.pgconn.transaction_status == _IDLE  # in a transaction a failure has spoiled it
        if self.pooled or self.lent:
            return await self._answer_unprepared(sql, params)
        while True:
            plan = self._plans.get(sql) or await self._prepare(sql)
            pgconn = self.pgconn
            pgconn.send_query_prepared(
                plan.name, plan.encoded(params), param_formats=plan.formats, result_format=_BINARY
            )
            try:
                return plan, await self._result()
            except psycopg.Error as error:
                if error.sqlstate not in _STALE:
                    raise
                self._plans.pop(sql, None)
                if not again:
                    raise
            again = False

    async def _answer_unprepared(self, sql: str, params: Sequence[Any]) -> tuple[Plan, pq.abc.PGresult]:
        plan = self._plans.get(sql)
        if plan is None:
            plan = self._plans[sql] = Plan(sql)
        self.pgconn.send_query_params(
            sql.encode(), plan.encoded(params), plan.types, param_formats=plan.formats, result_format=_BINARY
        )
        return plan, await self._result()

    async def _prepare(self, sql: str) -> Plan:
        self._prepared_ever += 1
        name = b"alkstore_%d" % self._prepared_ever
        self.pgconn.send_prepare(name, sql.encode())
        await self._result()
        plan = self._plans[sql] = Plan(sql, name)
        await anyio.lowlevel.checkpoint_if_cancelled()  # nothing has happened yet
        return plan

    async def _result(self) -> pq.abc.PGresult:
        """The answer to what was just sent."""
        result: pq.abc.PGresult = await self.wait(_answered(self.pgconn))
        return result

    # Waiting

    async def wait(self, gen: Any, *intervals: Any, **named: Any) -> Any:
        """The result of a generator of psycopg's: what all that it sends and receives goes through.

        How long at most and how often to look, which psycopg may ask for besides, is for who cannot be cancelled.
        """
        try:
            wanted = next(gen)
            while True:
                try:
                    ready = await self._ready(wanted)
                except BaseException as interruption:
                    return await self._interrupted(gen, wanted, interruption)
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value

    async def _ready(self, wanted: int) -> int:
        """Wait for the socket to be ready for some of that, and for what."""
        fd = self.pgconn.socket
        if wanted == READ:
            await self._socket.readable(fd)
            return READ
        ready = ready_now(fd, wanted)  # nearly always, when there is something to send
        if not ready:
            return await either(fd, wanted)
        if anyio.current_time() > self._turn_ends:
            await checkpoint()
            self._turn_ends = anyio.current_time() + _TURN
        return ready

    async def _interrupted(self, gen: Any, wanted: int, interruption: BaseException) -> Any:
        """What the generator comes to, if the interruption came too late, else the interruption."""
        if not isinstance(interruption, anyio.get_cancelled_exc_class()):
            was_closed = self.pgconn.status == _BAD
            self.abort()
            if was_closed and isinstance(interruption, Exception):
                raise psycopg.OperationalError("the connection was closed while it was in use") from None
            raise interruption
        bare = came_barely()
        outcome = await unbroken(partial(self._called_off, gen, wanted))
        if not outcome:
            raise interruption
        if bare:
            cancel_later()
        return outcome[0]

    async def _called_off(self, gen: Any, wanted: int) -> list[Any]:
        """Drive the generator to its end, cancelling what it is at; its result, if it has one."""
        try:
            with anyio.move_on_after(_CANCEL_BOUND):
                while wanted != READ:  # a cancel before the server has the whole statement comes to nothing
                    wanted = gen.send(await self._ready(wanted))
                with anyio.move_on_after(_GRACE):  # most are answered sooner than they could be cancelled
                    while True:
                        wanted = gen.send(await self._ready(wanted))
                await self._cancel_statement()
                while True:
                    wanted = gen.send(await self._ready(wanted))
        except StopIteration as end:
            return [end.value]
        except psycopg.errors.QueryCanceled:
            return []
        except Exception:  # it has failed by itself, or nobody knows
            if not self.answers or self.busy:
                self.uncertain = True
                self.abort()
            return []
        self.uncertain = True
        self.abort()
        return []

    async def _cancel_statement(self) -> None:
        """Ask the server to; where it cannot be asked, the statement may still come to its end by itself."""
        with suppress(psycopg.Error):
            try:
                cancel = self.pgconn.cancel_conn()
            except psycopg.NotSupportedError:  # libpq before 17, whose only way blocks the interpreter
                await _cancelled(self._conninfo, self.pgconn.backend_pid)
                return
            try:
                cancel.start()
                await _polled(cancel.poll, cancel)
            finally:
                _finish(cancel)

    # Notifications

    async def listen(self, channel: str) -> None:
        """Have what is notified on a channel kept for `notified`."""
        self._listens = True
        quoted = channel.replace('"', '""')
        await self.run(f'listen "{quoted}"')

    async def notified(self) -> list[psycopg.Notify]:
        """Wait until something was notified, and return all that was; the driver's error if the server is lost."""
        if not self._listens:
            raise RuntimeError("nothing is listened to on this connection: call `listen` first")
        async with self.lock:
            while not self._notes:
                try:
                    await self._socket.readable(self.pgconn.socket)
                except anyio.ClosedResourceError:
                    raise psycopg.OperationalError("the connection was closed while it was in use") from None
                self._drain()
            notes = list(self._notes)
            self._notes.clear()
            return notes

    def _drain(self) -> None:
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            self._collect()
            if not self._notes:  # else the next call is told
                raise
        else:
            self._collect()

    def _collect(self) -> None:
        while note := self.pgconn.notifies():
            self._note(psycopg.Notify(note.relname.decode(), note.extra.decode(), note.be_pid))

    def _note(self, note: psycopg.Notify) -> None:
        if self._listens:  # else it is the application that listens, to what nobody would fetch
            self._notes.append(note)

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        self._doomed = self._doomed or notice.severity_nonlocalized in ("FATAL", "PANIC")

    # Its state and its end

    @property
    def usable(self) -> bool:
        """Whether the next statement may be sent, outside of any transaction."""
        pgconn = self.pgconn
        return (
            pgconn.status == _OK
            and pgconn.transaction_status == _IDLE
            and pgconn.pipeline_status == _OFF
            and not self._doomed
            and not self.lent
        )

    @property
    def alive(self) -> bool:
        """Whether it is usable and, for all that its socket tells, the server still is at the other end."""
        return self.answers and self.usable

    @property
    def answers(self) -> bool:
        """Whether, for all that its socket tells, the server still is at the other end; between two statements."""
        pgconn = self.pgconn
        try:
            while pgconn.status == _OK and not self._doomed and ready_now(pgconn.socket, READ):
                pgconn.consume_input()
                self._collect()  # which also has libpq look at what it has read
        except psycopg.Error:
            return False
        return pgconn.status == _OK and not self._doomed

    @property
    def busy(self) -> bool:
        """Whether a statement is under way."""
        return self.pgconn.status == _OK and self.pgconn.transaction_status == _ACTIVE

    async def close(self) -> None:
        """Close it; what it is at is called off, in bounded time."""
        if self.busy:
            await unbroken(self._cancel_in_time)
        self.abort()

    async def _cancel_in_time(self) -> None:
        with anyio.move_on_after(_CANCEL_BOUND):
            await self._cancel_statement()

    def abort(self) -> None:
        """Close it at once; whoever waits on it is told."""
        self._closed = True
        if (fd := _fd(self.pgconn)) >= 0:
            self._socket.closing(fd)
        self.pgconn.finish()


async def _attempts(params: dict[str, Any]) -> list[Any]:
    """A conninfo for each address that is to be tried, in order."""
    try:
        if (params.get("host") or "").startswith(("/", "@")) or params.get("hostaddr"):
            return _split(params)
        return await anyio.to_thread.run_sync(_split, params, abandon_on_cancel=True)
    except psycopg.OperationalError as error:
        raise NotConnected(str(error)) from None


async def _connected(conninfo: str) -> pq.abc.PGconn:
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        await _polled(pgconn.connect_poll, pgconn)
    except BaseException:
        _finish(pgconn)
        raise
    pgconn.nonblocking = 1
    return pgconn


async def _cancelled(conninfo: str, pid: int) -> None:
    """Have what a backend is at cancelled, by way of another connection."""
    pgconn = await _connected(conninfo)
    try:
        pgconn.send_query(b"select pg_cancel_backend(%d)" % pid)
        pgconn.flush()
        await anyio.wait_readable(pgconn.socket)  # then it is done
    finally:
        _finish(pgconn)


async def _polled(poll: Callable[[], int], what: Any) -> None:
    """Go through what libpq does in steps that wait for a socket of its own choice."""
    while True:
        if what.status == _BAD:
            raise NotConnected(_trouble(what))
        status = poll()
        if status == pq.PollingStatus.OK:
            return
        if status == pq.PollingStatus.READING:
            await anyio.wait_readable(what.socket)
        elif status == pq.PollingStatus.WRITING:
            await anyio.wait_writable(what.socket)
        else:
            raise NotConnected(_trouble(what))


def _trouble(what: Any) -> str:
    if hasattr(what, "get_error_message"):
        return str(what.get_error_message())
    return str(what.error_message)  # of what cancels, at first


def _finish(what: Any) -> None:
    if (fd := _fd(what)) >= 0:
        anyio.notify_closing(fd)
    what.finish()


def _fd(what: Any) -> int:
    try:
        fd: int = what.socket
    except psycopg.Error:  # it has none any more
        return -1
    return fd
