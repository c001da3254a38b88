"""The threads that a store's statements run in, and what passes between them and the event loop.

A `Request` is taken by exactly one side: by a thread, and then its caller waits for it whatever happens, or by its
caller, who was cancelled, and then it never was. Nothing here knows the loop: finished requests are posted to it.
"""

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol, TypeVar

from ..._errors import Closed, DatabaseError
from ..._loop import Event
from ..._ops import Op
from ..sqlops import HANDLERS, give_back, prune, wake
from .file import Checkpoints, File, Session, failure, is_busy
from .peers import Peers, mark

__all__ = ["Hold", "Post", "Readers", "Request", "Work", "Writer", "doing", "nobody"]

log = logging.getLogger("alkstore_trio")

_READERS = 2  # so that a long read does not stop the short ones
_READ_TOGETHER = 16  # answers that are handed back at once, when so many are asked for
_GROUP = 0.005  # seconds for which a group takes in those that come while it runs
_STRETCH = 0.02  # seconds of groups back to back, after which other connections get
_REST = 0.001  # so many to take the lock
_FIRST_NAP = 0.0005  # seconds before a lock that another connection holds is asked for again, doubled each time
_LAST_NAP = 0.01
_HELD_LONG = 1.0  # seconds of a held writer that are worth a warning: no lease can be renewed meanwhile
_GLANCE = 0.1  # seconds after which a held writer looks whose patience is over
_WAKES_KEPT = 4_096  # rows
_PRUNE_EVERY = 1_024  # groups that woke somebody

A = TypeVar("A")

Work = Callable[[Session, float], Any]


def doing(op: Op[Any], ids: Sequence[int] = ()) -> Work:
    """The work of an op."""
    handler = HANDLERS[op.__class__]
    return lambda session, now: session.run(handler(op, now, ids))


def nobody(answer: object) -> Iterable[str]:
    """The channels of what wakes nobody."""
    return ()


class Request:
    """Work for a thread, and what it came to."""

    __slots__ = (
        "_taken",
        "answer",
        "channels",
        "done",
        "ends",
        "error",
        "hold",
        "now",
        "queued_at",
        "settled",
        "wakes",
        "work",
    )

    def __init__(
        self,
        work: Work,
        now: float | None,
        done: Event,
        wakes: Callable[[Any], Iterable[str]] = nobody,
        settled: Callable[["Request"], object] | None = None,
        hold: "Hold | None" = None,
        ends: bool = False,
    ) -> None:
        self.work = work
        self.now = now  # None: what the host's clock says when it is done
        self.done = done  # set in the loop
        self.wakes = wakes  # the channels that its answer wakes
        self.settled = settled  # called in the loop before anybody else runs
        self.hold = hold  # what it takes the writer for
        self.ends = ends  # whether it commits what holds the writer
        self.queued_at = time.monotonic()
        self.answer: Any = None
        self.error: Exception | None = None
        self.channels: Iterable[str] = ()
        self._taken = Lock()

    def take(self) -> bool:
        """Whether the request is, from now on and for good, the business of whoever asks."""
        return self._taken.acquire(blocking=False)

    @property
    def is_taken(self) -> bool:
        """Whether somebody has taken it."""
        return self._taken.locked()

    def run(self, session: Session) -> None:
        """Do the work."""
        self.answer = self.work(session, time.time() if self.now is None else self.now)
        self.channels = self.wakes(self.answer)


class Hold:
    """A transaction's grip on the writer."""

    __slots__ = ("_post", "began", "inbox", "lives", "task", "who")

    def __init__(self, task: int, who: str, post: "Post") -> None:
        self._post = post
        self.task = task  # that a wait for it would be a wait for oneself
        self.who = who
        self.inbox: SimpleQueue[Request | None] = SimpleQueue()
        self.began = False  # whether the writer has come to it
        self.lives = False  # whether the writer is serving it

    def submit(self, request: Request) -> None:
        """Have a request done in the transaction."""
        self.inbox.put(request)
        if not self.lives:
            self.refuse_all()

    def refuse_all(self) -> None:
        """Answer those that came when the writer had left: the store is closed."""
        refused = list(_drained(self.inbox))
        for request in refused:
            request.error = Closed()
        self._post(refused)

    def discard(self) -> None:
        """End the transaction without its effects. May be called in any thread, and twice."""
        self.inbox.put(None)


class Post(Protocol):
    """Where threads leave what they have finished."""

    def __call__(self, requests: list[Request], /) -> None: ...


class Writer:
    """The thread that writes.

    It serves all that wait together with one transaction. If anything of that fails it is rolled back, and each request
    is run again in a transaction of its own, so that it fails alone. A transaction that holds the writer is served
    until it ends, and nobody else is meanwhile.
    """

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
            self._refuse_all()

    def interrupt(self) -> None:
        """Break off the statement that is running; a group that it hits by mistake is run again."""
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
                self._opened.error = _translated(error, self._file)
                return
            finally:
                self._post([self._opened])
            try:
                self._serve()
            finally:
                self._leave()
        finally:
            self._over = True
            self._refuse_all()
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
            if self.unused:
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
        nap = _FIRST_NAP
        while not self._closing:
            self._expire("is locked by another connection")
            if all(request.is_taken for request in self._waiting):
                self._waiting.clear()
                return False
            try:
                self._session.begin()
                return True
            except sqlite3.Error as error:
                if not is_busy(error):
                    self._fail([request for request in self._waiting if request.take()], error)
                    self._waiting.clear()
                    return False
            self._receive(nap)
            nap = min(nap * 2, _LAST_NAP)
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
            while self._waiting and not (group and self._waiting[0].hold):
                request = self._waiting.popleft()
                if not request.take():
                    continue
                if request.hold:
                    self._serve_hold(request, request.hold)
                    return
                group.append(request)
                request.run(self._session)
                if time.monotonic() > until:
                    break
                if not self._waiting:
                    self._receive()
            self._commit(group)
        except Exception as error:
            self._rollback()
            if len(group) == 1:
                self._fail(group, error)
            else:
                for request in group:
                    self._alone(request)
        else:
            self._committed(group)

    def _alone(self, request: Request) -> None:
        """Serve a request that was taken with a transaction of its own."""
        try:
            self._file.patiently(self._session.begin, lambda: self._closing, time.sleep)
            request.run(self._session)
            self._commit([request])
        except Exception as error:
            self._rollback()
            self._fail([request], error)
        else:
            self._committed([request])

    def _commit(self, group: list[Request]) -> None:
        channels = _woken(group)
        if channels:
            self._wakes += 1
            self._session.run(wake(channels, self._origin, self._wakes, time.time()))
            if self._wakes % _PRUNE_EVERY == 0:
                self._session.run(prune(_WAKES_KEPT))
        self._session.commit()

    def _committed(self, group: list[Request]) -> None:
        """Hint to the other stores what stands now, and hand it back."""
        channels = _woken(group)
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
            self._session.close()
            self._session = self._file.connect()

    def _fail(self, requests: list[Request], error: Exception) -> None:
        for request in requests:
            request.error = _translated(error, self._file)
        self._post(requests)

    def _tend(self) -> None:
        try:
            self._checkpoints.tend(self._session)
        except Exception as error:
            log.warning("%r: a checkpoint failed: %s", self._file.path, error)

    # A transaction that holds the writer

    def _serve_hold(self, request: Request, hold: Hold) -> None:
        hold.began = hold.lives = True
        try:
            self._serve_until_its_end(request, hold)
        finally:
            hold.lives = False
            hold.refuse_all()

    def _serve_until_its_end(self, request: Request, hold: Hold) -> None:
        since = time.monotonic()
        glance, warned = since + _GLANCE, False
        while self._serve_held(request, hold):
            following: Request | None = None
            while following is None:
                if time.monotonic() > glance:
                    self._receive()
                    held = time.monotonic() - since
                    self._expire(f"is held by a transaction of task {hold.who!r}, for {held:.1f} s now")
                    if held > _HELD_LONG and not warned:
                        warned = True
                        log.warning(
                            "%r: a transaction of task %r has held the writer for %.1f s: nobody can write and no "
                            "lease can be renewed until it ends (publish and execute last)",
                            self._file.path,
                            hold.who,
                            held,
                        )
                    glance = time.monotonic() + _GLANCE
                try:
                    following = hold.inbox.get(timeout=_GLANCE)
                except Empty:
                    if self._closing:
                        self._rollback()
                        return
                    continue
                if following is None:
                    self._rollback()
                    return
                if not following.take():
                    following = None
            request = following

    def _serve_held(self, request: Request, hold: Hold) -> bool:
        """Do a request in the transaction; whether that goes on."""
        try:
            request.run(self._session)
            if request.ends:
                self._commit([request])
        except (OverflowError, TypeError, ValueError) as error:  # refused before it reached the database
            request.error = error
        except Exception as error:
            self._rollback()
            request.error = _translated(error, self._file)
            hold.lives = False
        if request.ends and request.error is None:
            hold.lives = False
            self._committed([request])
        else:
            self._post([request])
        return hold.lives

    def _refuse_all(self) -> None:
        refused = [request for request in self._waiting if request.take()]
        self._waiting.clear()
        refused.extend(_drained(self._inbox))
        for request in refused:
            request.error = Closed()
        self._post(refused)


def _drained(inbox: "SimpleQueue[Request | None]") -> Iterator[Request]:
    """Take what is left in an inbox."""
    while True:
        try:
            request = inbox.get_nowait()
        except Empty:
            return
        if request is not None and request.take():
            yield request


def _woken(group: list[Request]) -> dict[str, None]:
    """The channels that a group's answers wake, each once."""
    return dict.fromkeys(channel for request in group for channel in request.channels)


class Readers:
    """The threads that read: each request in a transaction of its own, which sees the last commit."""

    def __init__(self, file: File, post: Post) -> None:
        self._file = file
        self._post = post
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._closing = False
        self._threads = [
            Thread(target=self._main, name="alkstore reader", args=(number,), daemon=True) for number in range(_READERS)
        ]

    def start(self, ending: Callable[[], Request]) -> None:
        """Begin; each thread posts one of ``ending()`` when it is about to end."""
        self._ended = [ending() for _ in self._threads]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request) -> None:
        """Have a request done. `Closed` when nobody is there to do it."""
        if self._closing:
            raise Closed
        self._inbox.put(request)

    def close(self) -> None:
        """Ask the threads to end, once they have done what was submitted before."""
        self._closing = True
        for _ in self._threads:
            self._inbox.put(None)

    def join(self) -> None:
        """Wait for the threads, which have said that they are ending."""
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join()

    # The threads

    def _main(self, number: int) -> None:
        session: Session | None = None
        finished: list[Request] = []
        try:
            while (request := self._inbox.get()) is not None:
                if request.take():
                    try:
                        if session is None:
                            session = self._patiently(self._file.connect)
                        self._patiently(partial(self._read, session, request))
                    except Exception as error:
                        request.error = _translated(error, self._file)
                    finished.append(request)
                if self._inbox.empty() or len(finished) >= _READ_TOGETHER:
                    self._post(finished)
                    finished = []
        finally:
            if session is not None:
                session.close()
            self._post([*finished, self._ended[number]])

    def _patiently(self, verb: Callable[[], A]) -> A:
        return self._file.patiently(verb, lambda: self._closing, time.sleep)

    def _read(self, session: Session, request: Request) -> None:
        session.query("begin")
        try:
            request.run(session)
        finally:
            session.rollback()


def _translated(error: Exception, file: File) -> Exception:
    """What a caller is told."""
    if not isinstance(error, sqlite3.Error):
        return error
    told = failure(error, file.path)
    told.__cause__ = error
    return told
