"""The file: how it is opened, what is said when it cannot be, how a statement reaches it, when its WAL is checkpointed.

Only the standard library's ``sqlite3`` touches the file. Nothing here may open or close the database, its ``-wal`` or
its ``-shm`` by another way, not even to read: closing any descriptor on them drops SQLite's locks. No connection
checkpoints by itself; `Checkpoints` has it done while the write lock is held, which keeps SQLite's WAL-reset bug out of
reach.
"""

import logging
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from ..._errors import DatabaseError
from ..schema import VERSION, prefixed, sqlite_steps
from ..sqlops import Steps

__all__ = ["FIRST_NAP", "LAST_NAP", "Checkpoints", "File", "Session", "failure", "is_busy", "is_unsynced"]

A = TypeVar("A")

log = logging.getLogger("alkstore_trio")

_OLDEST = (3, 37, 0)  # the first with strict tables; WAL and RETURNING are older
_WAL_LIMIT = 4 * 2**20  # bytes past which the WAL is checkpointed
_PATIENCE = 0.1  # seconds at most that a checkpoint waits for readers, the write lock held
_PAUSE = 0.1  # seconds after a checkpoint that readers kept incomplete
FIRST_NAP = 0.0005  # seconds before a lock that another process holds is asked for again, doubled each time
LAST_NAP = 0.01
_NETWORK = {"afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock that is worth waiting for."""
    return _code(error) & 0xFF == sqlite3.SQLITE_BUSY and _code(error) != sqlite3.SQLITE_BUSY_SNAPSHOT


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) or 0


_AWAY = {
    sqlite3.SQLITE_BUSY: "is locked by another connection",
    sqlite3.SQLITE_LOCKED: "is locked by another connection",
    sqlite3.SQLITE_PROTOCOL: "is contended for by too many connections",
    sqlite3.SQLITE_FULL: "cannot grow: its disk is full; the store goes on when there is space",
    sqlite3.SQLITE_IOERR: "could not be read or written by the operating system",
}
_BROKEN = {
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: does its folder exist, and may this process write there?",
    sqlite3.SQLITE_READONLY: "is read-only: this process must be able to write to it and beside it",
    sqlite3.SQLITE_PERM: "may not be accessed: this process must be able to write to it and beside it",
    sqlite3.SQLITE_NOTADB: "is no SQLite database (or an encrypted one): name another file",
    sqlite3.SQLITE_CORRUPT: "is corrupted: restore it from a backup, or see what SQLite's `.recover` can save",
}


def is_unsynced(error: sqlite3.Error) -> bool:
    """Whether the system failed to sync a file that was written."""
    return _code(error) == sqlite3.SQLITE_IOERR_FSYNC


def failure(error: sqlite3.Error, path: str) -> DatabaseError:
    """The library's error for one of SQLite's."""
    code = _code(error)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return DatabaseError(
            f"{path!r} was changed after this transaction had begun to read: run the transaction again", retryable=True
        )
    known = _AWAY.get(code & 0xFF) or _BROKEN.get(code & 0xFF)
    message = f"{path!r} {known} ({error})" if known else f"{path!r}: {error}"
    return DatabaseError(message, transient=code & 0xFF in _AWAY)


class Session:
    """A connection of ours and how statements run on it; used by one thread at a time."""

    __slots__ = ("_cursor", "_prefix", "_texts", "changed", "connection")

    def __init__(self, connection: sqlite3.Connection, prefix: str) -> None:
        self.connection: sqlite3.Connection = connection
        self.changed = False  #: whether a statement of the application's may have left it other than it was
        self._cursor = connection.cursor()
        self._cursor.row_factory = None
        self._prefix = prefix
        self._texts: dict[str, str] = {}

    def run(self, steps: Steps[A]) -> A:
        """What the steps come to."""
        texts, cursor = self._texts, self._cursor
        try:
            template, params = next(steps)
            while True:
                text = texts.get(template)
                if text is None:
                    text = texts[template] = prefixed(template, self._prefix)
                result: Any
                if params.__class__ is list:
                    result = cursor.executemany(text, params).rowcount
                elif cursor.execute(text, params).description is None:
                    result = cursor.rowcount
                else:
                    result = cursor.fetchall()
                template, params = steps.send(result)
        except StopIteration as end:
            answer: A = end.value
            return answer

    def query(self, text: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """The rows of one statement that is not of the catalogue."""
        return self._cursor.execute(text, params).fetchall()

    def begin(self) -> None:
        """Take the write lock, or fail at once."""
        self._cursor.execute("begin immediate")

    def commit(self) -> None:
        """Make the transaction stand."""
        self._cursor.execute("commit")

    def rollback(self) -> None:
        """End the transaction, if SQLite has not done so itself."""
        if self.connection.in_transaction:
            self._cursor.execute("rollback")

    def close(self) -> None:
        """Close the connection."""
        self._cursor.close()
        self.connection.close()


@attrs.frozen
class File:
    """Which file, and how it is to be treated."""

    path: str  # absolute
    durability: str
    prefix: str
    busy_timeout: float  # seconds

    def connect(self) -> Session:
        """A connection that waits for nobody and never checkpoints."""
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        session = Session(connection, self.prefix)
        try:
            for pragma in (
                "wal_autocheckpoint = 0",
                "mmap_size = 0",
                f"synchronous = {self.durability}",
                f"journal_size_limit = {_WAL_LIMIT}",
                *(("fullfsync = 1", "checkpoint_fullfsync = 1") if sys.platform == "darwin" else ()),
            ):
                session.query(f"pragma {pragma}")
        except BaseException:
            session.close()
            raise
        return session

    def check(self) -> None:
        """Refuse what can be told without opening the file."""
        if sqlite3.sqlite_version_info < _OLDEST:
            raise DatabaseError(
                f"this Python's sqlite3 links SQLite {sqlite3.sqlite_version}; a store needs 3.37 or later"
            )
        folder = os.path.dirname(self.path)
        try:
            mode = os.stat(self.path).st_mode
        except FileNotFoundError:
            if not os.path.isdir(folder):
                raise DatabaseError(f"{self.path!r}: there is no folder {folder!r}; make it first") from None
        except OSError as error:
            raise DatabaseError(f"{self.path!r}: {error.strerror}; name a file in a folder of your own") from error
        else:
            if stat.S_ISDIR(mode):
                raise DatabaseError(f"{self.path!r} is a folder: name a file in it")
            if not stat.S_ISREG(mode):
                raise DatabaseError(f"{self.path!r} is no regular file: name another")
            if not os.access(self.path, os.R_OK | os.W_OK):
                raise DatabaseError(f"{self.path!r} {_BROKEN[sqlite3.SQLITE_READONLY]}")
        system = _file_system(folder)
        if system in _NETWORK:
            raise DatabaseError(
                f"{self.path!r} is on a network file system ({system}), where SQLite's locks do not hold: "
                "name a file on a local disk"
            )
        if _resets_wal_unsafely(sqlite3.sqlite_version_info):
            log.warning(
                "SQLite %s can lose commits when connections other than the store's checkpoint %r (fixed in 3.51.3): "
                "run `pragma wal_autocheckpoint = 0` on the application's own connections, or use a newer SQLite",
                sqlite3.sqlite_version,
                self.path,
            )

    def prepare(self, session: Session) -> None:
        """Turn WAL on and bring the schema to today's version."""
        found = self._version(session)
        if session.query("pragma journal_mode")[0][0] != "wal":
            mode = session.query("pragma journal_mode = wal")[0][0]
            if mode != "wal":
                raise DatabaseError(
                    f"{self.path!r}: SQLite cannot keep a WAL here (it says {mode!r}): use a local disk"
                )
        if found == VERSION:
            return
        session.begin()
        try:
            found = self._version(session)
            for statement in sqlite_steps(found):
                session.query(prefixed(statement, self.prefix))
            table = prefixed("$schema", self.prefix)
            session.query(f"delete from {table}")
            session.query(f"insert into {table}(version) values (?)", (VERSION,))
            session.commit()
        except BaseException:
            session.rollback()
            raise

    def _version(self, session: Session) -> int:
        table = prefixed("$schema", self.prefix)
        if not session.query("select 1 from sqlite_master where type = 'table' and name = ?", (table,)):
            return 0
        rows = session.query(f"select version from {table}")
        if len(rows) != 1 or not isinstance(rows[0][0], int) or rows[0][0] < 1:
            raise DatabaseError(f"{self.path!r}: the table {table!r} is not the store's: use another table_prefix")
        version: int = rows[0][0]
        if version > VERSION:
            raise DatabaseError(
                f"{self.path!r} has the store's schema in version {version}, newer than this library's {VERSION}: "
                "use a newer alkstore-trio"
            )
        return version

    def patiently(self, verb: Callable[[], A], cut_short: Callable[[], bool], nap: Callable[[float], object]) -> A:
        """The result of a verb, tried again while another connection is in the way, for as long as the busy timeout.

        ``nap(seconds)`` waits between two attempts; when ``cut_short()`` says so the last failure is raised.
        """
        until = time.monotonic() + self.busy_timeout
        wait = FIRST_NAP
        while True:
            try:
                return verb()
            except sqlite3.Error as error:
                if not is_busy(error) or cut_short() or time.monotonic() > until:
                    raise
            nap(wait)
            wait = min(wait * 2, LAST_NAP)


def _file_system(folder: str) -> str | None:
    """The type of the file system that a folder is on, where the platform tells."""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            mounted = [line.split(" ")[1:3] for line in mounts]
    except OSError:
        return None
    real = os.path.realpath(folder)
    best, system = "", None
    for escaped, kind in mounted:
        point = escaped.replace("\\040", " ")
        if len(point) >= len(best) and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, system = point, kind
    return system


def _resets_wal_unsafely(version: tuple[int, int, int]) -> bool:
    """Whether a checkpoint beside a commit may lose it: all versions before 3.51.3 but for two backports."""
    mended = (3, 44, 6) <= version < (3, 45, 0) or (3, 50, 7) <= version < (3, 51, 0) or version >= (3, 51, 3)
    return not mended


class Checkpoints:
    """Keeps the WAL short, from the writer's thread."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._wal = f"{file.path}-wal"
        self._session: Session | None = None
        self._not_before = 0.0  # by the monotonic clock
        self._patient = True

    def tend(self, writer: Session) -> None:
        """Have a WAL that is past its limit copied into the database, with the write lock held throughout."""
        try:
            size = os.stat(self._wal).st_size
        except OSError:
            return
        if size <= _WAL_LIMIT or time.monotonic() < self._not_before:
            return
        if self._session is None:
            self._session = self._file.connect()
        writer.begin()
        try:
            self._copy(self._session, size)
        finally:
            writer.rollback()

    def _copy(self, session: Session, size: int) -> None:
        patience = min(size / _WAL_LIMIT / 1000, _PATIENCE) if self._patient else 0.0
        until = time.monotonic() + patience
        while not (complete := self._copied(session)) and time.monotonic() < until:
            time.sleep(0.001)
        self._patient = complete or not self._patient  # every other round where some reader stays
        if not complete:
            self._not_before = time.monotonic() + _PAUSE

    def _copied(self, session: Session) -> bool:
        try:
            [(busy, logged, copied)] = session.query("pragma wal_checkpoint(passive)")
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise
        return not busy and logged == copied

    def close(self) -> None:
        """Close the connection that checkpoints."""
        if self._session is not None:
            self._session.close()
