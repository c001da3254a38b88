"""The thread that writes: one transaction for all that wait together.

If anything of that fails it is rolled back, and each request is run again in a transaction of its own, so that it fails
alone. A transaction that holds the writer is served until it ends, and nobody else is meanwhile.
"""

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from ..._errors import CommitUnknown, DatabaseError
from ..sqlops import give_back, wake
from .file import FIRST_NAP, LAST_NAP, Checkpoints, File, Session, is_busy, is_unsynced
from .peers import Peers, mark
from .requests import Hold, Post, Request, drained, refuse, translated

__all__ = ["Writer"]

log = logging.getLogger("alkstore_trio")

_GROUP = 0.005  # seconds for which a group takes in those that come while it runs
_STRETCH = 0.02  # seconds of groups back to back, after which other connections get
_REST = 0.001  # so many to take the lock
_HELD_LONG = 1.0  # seconds of a held writer that are worth a warning: no lease can be renewed meanwhile
_GLANCE = 0.1  # seconds after which a held writer looks whose patience is over


class Writer:
    """The writing connection, and who is served on it."""

    def __init__(self, file: File, origin: int, peers: Peers, post: Post) -> None:
        self.unused: list[range] = []  # job ids to give back at the end
        self._file = file
        self._origin = origin
        self._peers = peers
        self._post = post
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._closing = False
        self._over = False
        self._checkpoints = Checkpoints(file)
        self._wakes = 0  # commits that woke somebody
        self._broken = False  # whether the connection is past use
        self._running: Request | None = None  # what a transaction that holds the writer has it do
        self._interrupting = Lock()  # held wherever it may not change
        self._session: Session
        self._thread = Thread(target=self._main, name="alkstore writer", daemon=True)

    def start(self, opened: Request, ended: Request) -> None:
        """Open the file; ``opened`` says how that went, ``ended`` that the thread is about to end."""
        self._opened, self._ended = opened, ended
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Have a request done."""
        self._inbox.put(request)
        if self._over:
            refuse(drained(self._inbox), self._post)

    def interrupt(self, request: Request) -> None:
        """Break off the statement that a transaction's request is at, unless it is done: then another's may run."""
        with self._interrupting:
            if self._running is request:
                self._session.connection.interrupt()

    def close(self) -> None:
        """Ask the thread to end."""
        self._inbox.put(None)

    def join(self) -> None:
        """Wait for the thread, which has said that it is ending."""
        self._thread.join()

    # The thread

    def _main(self) -> None:
        try:
            self._opened.take()
            try:
                self._file.check()
                self._session = self._file.patiently(self._open, lambda: self._closing, self._receive)
            except Exception as error:
                self._opened.error = translated(error, self._file)
                return
            finally:
                self._post([self._opened])
            try:
                self._serve()
            finally:
                self._leave()
        finally:
            self._over = True
            refuse((request for request in self._waiting if request.take()), self._post)
            refuse(drained(self._inbox), self._post)
            self._post([self._ended])

    def _open(self) -> Session:
        session = self._file.connect()
        try:
            self._file.prepare(session)
            self._opened.run(session)
        except BaseException:
            session.close()
            raise
        return session

    def _leave(self) -> None:
        session = self._session
        try:
            if self.unused and not self._broken and not session.changed:
                session.begin()
                for ids in reversed(self.unused):
                    session.run(give_back(ids))
                session.commit()
        except sqlite3.Error:
            session.rollback()  # they are gaps then
        finally:
            self._checkpoints.close()
            session.close()

    def _receive(self, seconds: float | None = 0.0) -> None:
        """Line up those that have come; with nobody there, wait so long for one (``None``: for good)."""
        inbox, waiting = self._inbox, self._waiting
        try:
            request = inbox.get_nowait() if seconds == 0.0 else inbox.get(timeout=seconds)
            while True:
                if request is None:
                    self._closing = True
                else:
                    waiting.append(request)
                request = inbox.get_nowait()
        except Empty:
            return

    def _serve(self) -> None:
        stretch = time.monotonic()
        while not self._closing:
            if not self._waiting:
                self._receive()
            if not self._waiting and not self._closing:
                self._receive(None)
                stretch = time.monotonic()
            if self._lock():
                self._group()
                self._tend()
                if time.monotonic() - stretch > _STRETCH:
                    time.sleep(_REST)
                    stretch = time.monotonic()

    def _lock(self) -> bool:
        """Take the write lock for those that wait; false when nobody does any more."""
        nap = FIRST_NAP
        while not self._closing:
            self._expire("is locked by another connection")
            if all(request.is_taken for request in self._waiting):
                self._waiting.clear()
                return False
            try:
                if self._broken or self._session.changed:
                    self._session.close()
                    self._session = self._file.connect()
                    self._broken = False
                self._session.begin()
                return True
            except sqlite3.Error as error:
                if not is_busy(error):
                    self._fail([request for request in self._waiting if request.take()], error)
                    self._waiting.clear()
                    return False
            self._receive(nap)
            nap = min(nap * 2, LAST_NAP)
        return False

    def _expire(self, why: str) -> None:
        """Refuse those that have waited for as long as anybody does."""
        eldest = time.monotonic() - self._file.busy_timeout
        while self._waiting and self._waiting[0].queued_at <= eldest:
            request = self._waiting.popleft()
            if request.take():
                request.error = DatabaseError(
                    f"{self._file.path!r} {why}: not written for {self._file.busy_timeout:g} s", transient=True
                )
                self._post([request])

    def _group(self) -> None:
        """Serve those that wait with the transaction that was begun."""
        group: list[Request] = []
        until = time.monotonic() + _GROUP
        try:
            while self._waiting and not (group and self._waiting[0].alone):
                request = self._waiting.popleft()
                if not request.take():
                    continue
                if request.hold:
                    self._serve_hold(request, request.hold)
                    return
                group.append(request)
                request.run(self._session)
                if request.alone or time.monotonic() > until:
                    break
                if not self._waiting:
                    self._receive()
            channels = self._commit(group)
        except Exception as error:
            if len(group) == 1:
                self._fail(group, error)
            else:
                for request in reversed(group):
                    request.give_back()
                    self._waiting.appendleft(request)
            self._rollback()
        else:
            self._committed(group, channels)

    def _commit(self, group: list[Request]) -> Iterable[str]:
        """Make it stand, with what it wakes: each channel once."""
        channels = dict.fromkeys(channel for request in group for channel in request.channels)
        if channels:
            self._wakes += 1
            self._session.run(wake(channels, self._origin, self._wakes, time.time()))
        try:
            self._session.commit()
        except sqlite3.OperationalError as error:
            if is_unsynced(error):
                # It is in the WAL: gone with the next commit, back if there is a crash before one.
                raise CommitUnknown(
                    f"{self._file.path!r} could not be synced by the operating system: the commit may stand or not"
                ) from error
            raise
        return channels

    def _committed(self, group: list[Request], channels: Iterable[str]) -> None:
        """Hint to the other stores what stands now, and hand it back."""
        if channels:
            try:
                self._peers.tell((mark(channel), self._origin, self._wakes) for channel in channels)
            except Exception:  # what stands, stands: the others find it by their safety poll
                log.exception("%r: hinting to the other stores failed", self._file.path)
        self._post(group)

    def _rollback(self) -> None:
        try:
            self._session.rollback()
        except sqlite3.Error:
            log.exception("%r: a rollback failed; opening the file anew", self._file.path)
            self._broken = True

    def _fail(self, requests: list[Request], error: Exception) -> None:
        for request in requests:
            request.error = translated(error, self._file)
        self._post(requests)

    def _tend(self) -> None:
        try:
            self._checkpoints.tend(self._session)
        except Exception as error:
            if not (isinstance(error, sqlite3.Error) and is_busy(error)):  # else another will see to it, or we later
                log.warning("%r: a checkpoint failed: %s", self._file.path, error)
            self._broken = self._session.connection.in_transaction

    # A transaction that holds the writer

    def _serve_hold(self, request: Request, hold: Hold) -> None:
        """Serve a transaction until it ends."""
        hold.began = hold.lives = True
        hold.began_at = time.monotonic()
        hold.glance_at = hold.began_at + _GLANCE
        try:
            while self._serve_held(request, hold):
                following = self._next_held(hold)
                if following is None:
                    self._rollback()
                    return
                request = following
        finally:
            hold.lives = False
            hold.refuse_all()

    def _serve_held(self, request: Request, hold: Hold) -> bool:
        """Do a request in the transaction; whether that goes on."""
        channels: Iterable[str] = ()
        try:
            self._run(request)
            if request.ends:
                channels = self._commit([request])
        except (OverflowError, TypeError, ValueError) as error:  # refused before it reached the database
            request.error = error
        except Exception as error:
            self._rollback()
            request.error = translated(error, self._file)
            hold.lives = False
        if request.ends and request.error is None:
            hold.lives = False
        self._committed([request], channels)
        return hold.lives

    def _run(self, request: Request) -> None:
        self._running = request
        try:
            request.run(self._session)
        finally:
            with self._interrupting:
                self._running = None

    def _next_held(self, hold: Hold) -> Request | None:
        """What the transaction asks next; ``None``: it is discarded, or the store is closing."""
        while True:
            if time.monotonic() > hold.glance_at:
                self._glance(hold)
            try:
                request = hold.inbox.get(timeout=_GLANCE)
            except Empty:
                if self._closing:
                    return None
                continue
            if request is None or request.take():
                return request

    def _glance(self, hold: Hold) -> None:
        """Look whose patience is over, and whether the writer is held for too long."""
        self._receive()
        held = time.monotonic() - hold.began_at
        self._expire(f"is held by a transaction of task {hold.who!r}, for {held:.1f} s now")
        if held > _HELD_LONG and not hold.warned:
            hold.warned = True
            log.warning(
                "%r: a transaction of task %r has held the writer for %.1f s: nobody can write and no lease can be "
                "renewed until it ends (publish and execute last)",
                self._file.path,
                hold.who,
                held,
            )
        hold.glance_at = time.monotonic() + _GLANCE
