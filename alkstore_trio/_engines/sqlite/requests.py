"""What passes between the event loop and the threads that a store's statements run in.

A `Request` is taken by exactly one side: by a thread, and then its caller waits for it whatever happens, or by its
caller, who was cancelled, and then it never was. Nothing here knows the loop: finished requests are posted to it.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol

from ..._errors import Closed
from ..._loop import Event, TaskRef
from ..._ops import Op
from ..sqlops import HANDLERS
from .file import File, Session, failure

__all__ = ["Hold", "Post", "Request", "Work", "doing", "drained", "nobody", "nothing", "refuse", "translated"]

Work = Callable[[Session], Any]


def doing(op: Op[Any], clock: Callable[[], float], ids: Sequence[int] = ()) -> Work:
    """The work of an op, judged by what the clock says when it is done."""
    handler = HANDLERS[op.__class__]
    return lambda session: session.run(handler(op, clock(), ids))


def nothing(session: Session) -> None:
    """The work of a request that only says that something has happened."""


def nobody(answer: object) -> Iterable[str]:
    """The channels of what wakes nobody."""
    return ()


class Request:
    """Work for a thread, and what it came to."""

    __slots__ = (
        "_taken",
        "alone",
        "answer",
        "channels",
        "done",
        "ends",
        "error",
        "hold",
        "queued_at",
        "settled",
        "wakes",
        "work",
    )

    def __init__(
        self,
        work: Work,
        done: Event,
        wakes: Callable[[Any], Iterable[str]] = nobody,
        settled: Callable[["Request"], object] | None = None,
        hold: "Hold | None" = None,
        ends: bool = False,
    ) -> None:
        self.work = work
        self.done = done  # set in the loop
        self.wakes = wakes  # the channels that its answer wakes
        self.settled = settled  # called in the loop before anybody else runs
        self.hold = hold  # what it takes the writer for
        self.ends = ends  # whether it commits what holds the writer
        self.alone = hold is not None  # whether nothing else may be in its transaction
        self.queued_at = time.monotonic()
        self.answer: Any = None
        self.error: Exception | None = None
        self.channels: Iterable[str] = ()
        self._taken = Lock()

    def take(self) -> bool:
        """Whether the request is, from now on and for good, the business of whoever asks."""
        return self._taken.acquire(blocking=False)

    def give_back(self) -> None:
        """Undo `take` and whatever was done: it is to be run again, in a transaction of its own."""
        self.alone = True
        self.answer, self.channels = None, ()
        self._taken.release()

    @property
    def is_taken(self) -> bool:
        """Whether somebody has taken it."""
        return self._taken.locked()

    def run(self, session: Session) -> None:
        """Do the work."""
        self.answer = self.work(session)
        self.channels = self.wakes(self.answer)


class Post(Protocol):
    """Where threads leave what they have finished."""

    def __call__(self, requests: list[Request], /) -> None: ...


class Hold:
    """A transaction's grip on the writer."""

    __slots__ = ("_post", "began", "began_at", "glance_at", "inbox", "lives", "task", "warned", "who")

    def __init__(self, task: TaskRef | None, who: str, post: Post) -> None:
        self._post = post
        self.task = task  # that a wait for it would be a wait for oneself
        self.who = who
        self.inbox: SimpleQueue[Request | None] = SimpleQueue()
        self.began = False  # whether the writer has come to it
        self.lives = False  # whether the writer is serving it
        self.began_at = self.glance_at = 0.0  # the writer's own, by the monotonic clock
        self.warned = False

    def submit(self, request: Request) -> None:
        """Have a request done in the transaction."""
        self.inbox.put(request)
        if not self.lives:
            self.refuse_all()

    def refuse_all(self) -> None:
        """Answer those that came when the writer had left: the store is closed."""
        refuse(drained(self.inbox), self._post)

    def discard(self) -> None:
        """End the transaction without its effects. May be called in any thread, and twice."""
        self.inbox.put(None)


def drained(inbox: SimpleQueue[Request | None]) -> Iterator[Request]:
    """Take what is left in an inbox."""
    while True:
        try:
            request = inbox.get_nowait()
        except Empty:
            return
        if request is not None and request.take():
            yield request


def refuse(requests: Iterable[Request], post: Post) -> None:
    """Answer requests that nobody will do any more."""
    refused = list(requests)
    for request in refused:
        request.error = Closed()
    post(refused)


def translated(error: Exception, file: File) -> Exception:
    """What a caller is told."""
    if not isinstance(error, sqlite3.Error):
        return error
    told = failure(error, file.path)
    told.__cause__ = error
    return told
