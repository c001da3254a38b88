"""The server: how a connection is made ready, how steps run on one, how the schema comes to be.

What a role or a database has set for its sessions must not change what a statement means, so what matters is set again
here, for our own connections only.
"""

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import anyio
import attrs
import psycopg

from ..._errors import DatabaseError
from ..schema import VERSION, placed, postgres_steps
from . import sqlops
from .connection import AsyncAnyioConnection
from .failures import failure
from .sqlops import Steps
from .statements import compiled

__all__ = ["Server"]

A = TypeVar("A")

_ANSWER = 10.0  # seconds that a server with which there is a connection has for its first answer
_OLDEST = 13_00_00  # the first with gen_random_uuid(); older ones are no longer mended
_ENCODINGS = {b"UTF8", b"SQL_ASCII"}  # of a database: what keeps any text as it is

# A plan is kept that was made for an empty table, or for short queues, so none may begin with reading a whole table
# or queue. Nothing is set in a session that is not ours alone, as behind a pooler, where it would be set for somebody
# else too.
_SETTINGS = """
select
 set_config('default_transaction_isolation', 'read committed', false),
 set_config('default_transaction_deferrable', 'off', false),
 set_config('plan_cache_mode', 'force_generic_plan', false),
 set_config('enable_seqscan', 'off', false),
 set_config('enable_bitmapscan', 'off', false),
 set_config('jit', 'off', false),
 set_config('standard_conforming_strings', 'on', false),
 set_config('lock_timeout', %(timeout)s, false),
 case when current_setting('server_version_num')::int >= 140000 then set_config('idle_session_timeout', '0', false) end
where pg_backend_pid() = %(pid)s"""

# Names are looked up in the catalogue's tables: functions that do so may not see what was committed while they waited.
_STATE = """
select
 pg_is_in_recovery(),
 schema.oid is not null,
 exists (select from pg_catalog.pg_class where relname = 'schema' and relnamespace = schema.oid)
from (values (true)) as always
left join pg_catalog.pg_namespace as schema on nspname = (parse_ident(%s))[1]"""

_IS_OURS = """
select count(*) = 2
from pg_catalog.pg_attribute
where attrelid = %s::regclass and not attisdropped
 and (attname::text, atttypid) in (('version', 'int8'::regtype), ('store', 'uuid'::regtype))"""


class Runs(Protocol):
    """What runs statements of ours."""

    def run(self, sql: str, params: Sequence[Any], /) -> Awaitable[list[tuple[Any, ...]]]:
        """The rows of one, with ``$1`` for its parameters."""
        ...


@attrs.frozen
class Server:
    """Which server and schema, and how they are to be treated."""

    conninfo: str = attrs.field(repr=False)
    where: str  # what may be shown of it
    schema: str  # quoted
    lock_timeout: float  # seconds

    async def connect(self) -> AsyncAnyioConnection:
        """A connection that is ready for statements."""
        with self.telling():
            connection = await AsyncAnyioConnection.connect(self.conninfo)
            try:
                with anyio.fail_after(_ANSWER):
                    connection.pooled = not await self._is_set(connection)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def renew(self, connection: AsyncAnyioConnection) -> None:
        """Have the session of a connection that was lent as it was; behind a pooler it is not ours to reset."""
        if connection.lent and not connection.pooled:
            await connection.execute_own("discard all")
            if await self._is_set(connection):
                connection.renewed()

    async def _is_set(self, connection: AsyncAnyioConnection) -> bool:
        """Set what matters, if the session is ours alone; whether it is."""
        settings = {"timeout": self.timeout, "pid": connection.pgconn.backend_pid}
        return bool(await connection.execute_own(_SETTINGS, settings))

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Raise the library's error for whatever the driver raises, and for an answer that has not come in time."""
        try:
            yield
        except psycopg.Error as error:
            raise self.told(error) from error
        except OSError as error:  # which a timeout is too
            raise DatabaseError(f"{self.where!r} does not answer", transient=True) from error

    @property
    def timeout(self) -> str:
        """The ``lock_timeout`` as the server takes it."""
        return f"{max(1, round(min(self.lock_timeout * 1_000, 2**31 - 1)))}ms"

    async def run(self, connection: Runs, steps: Steps[A]) -> A:
        """What the steps come to; the driver's own errors."""
        try:
            template, params = next(steps)
            while True:
                text, names = compiled(template, self.schema)
                rows = await connection.run(text, [params[name] for name in names])
                template, params = steps.send(rows)
        except StopIteration as end:
            answer: A = end.value
            return answer

    def placed(self, text: str) -> str:
        """A text of no parameters for the tables of the schema."""
        return placed(text, self.schema)

    def told(self, error: psycopg.Error) -> DatabaseError:
        """The library's error for one of the driver's."""
        return failure(error, self.where)

    async def prepare(self, connection: AsyncAnyioConnection) -> str:
        """Refuse a server that cannot serve; bring the schema to today's version. Its identity."""
        release = connection.pgconn.server_version
        if release < _OLDEST:
            raise DatabaseError(
                f"{self.where!r} runs Postgres {release // 10_000}; a store needs {_OLDEST // 10_000} or later"
            )
        encoding = connection.pgconn.parameter_status(b"server_encoding")
        if encoding is not None and encoding not in _ENCODINGS:
            raise DatabaseError(
                f"{self.where!r} is encoded in {encoding.decode()}, which cannot keep every text: use a database that "
                "was created with encoding 'UTF8'"
            )
        with self.telling():
            try:
                _, version = await self._found(connection)
                if version != VERSION:
                    await self._upgrade(connection)
                return await self.run(connection, sqlops.identity())
            except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as error:
                raise DatabaseError(
                    f"{self.where!r}: somebody else has tables of the store's names in {self.schema}: "
                    "use another schema"
                ) from error

    async def _found(self, connection: AsyncAnyioConnection) -> tuple[bool, int]:
        """Whether the schema is there, and in which version the store's tables are in it; 0: in none."""
        table = self.placed("$schema")
        [(standby, has_schema, is_there)] = await connection.execute_own(_STATE, (self.schema,))
        if standby:
            raise DatabaseError(
                f"{self.where!r} is a read-only standby: name the primary, or add target_session_attrs=read-write"
            )
        if not is_there:
            return has_schema, 0
        rows = []
        if await connection.execute_own(_IS_OURS, (table,)) == [(True,)]:
            rows = await connection.execute_own(f"select version from {table} where version > 0 and store is not null")
        if len(rows) != 1:
            raise DatabaseError(f"{self.where!r}: the table {table} is not the store's: use another schema")
        version: int = rows[0][0]
        if version > VERSION:
            raise DatabaseError(
                f"{self.where!r} has the store's schema {self.schema} in version {version}, newer than this library's "
                f"{VERSION}: use a newer alkstore-trio"
            )
        return has_schema, version

    async def _upgrade(self, connection: AsyncAnyioConnection) -> None:
        """Do what is to be done, once however many hosts want it at this moment."""
        await connection.execute_own("begin")
        try:
            await connection.execute_own(
                "select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"alkstore {self.schema}",)
            )
            has_schema, found = await self._found(connection)
            statements = [] if has_schema else [f"create schema {self.schema}"]
            statements += [self.placed(step) for step in postgres_steps(found)]
            if found != VERSION:
                await connection.run_all(";".join(statements))
            await connection.execute_own("commit")
        except BaseException:
            connection.abort()
            raise
