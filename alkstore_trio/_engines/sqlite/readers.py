"""The threads that read: each request in a transaction of its own, which sees the last commit."""

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from ..._errors import Closed
from .file import File, Session, is_busy
from .requests import Post, Request, translated

__all__ = ["Readers"]

A = TypeVar("A")

_READERS = 2  # so that a long read does not stop the short ones
_READ_TOGETHER = 16  # answers that are handed back at once, when so many are asked for


class Readers:
    """Threads with a connection each, and what waits for any of them."""

    def __init__(self, file: File, post: Post) -> None:
        self._file = file
        self._post = post
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._closing = False
        self._ended: list[Request] = []
        self._threads = [
            Thread(target=self._main, name="alkstore reader", args=(number,), daemon=True) for number in range(_READERS)
        ]

    def start(self, ending: Callable[[], Request]) -> None:
        """Begin; each thread posts one of ``ending()`` when it is about to end."""
        for thread in self._threads:
            ended = ending()
            self._ended.append(ended)
            try:
                thread.start()
            except BaseException:
                self._post([ended])
                raise

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
            while (request := self._next(finished)) is not None:
                if request.take():
                    try:
                        if session is None:
                            session = self._patiently(self._file.connect)
                        self._patiently(partial(self._read, session, request))
                    except Exception as error:
                        cut_short = self._closing and isinstance(error, sqlite3.Error) and is_busy(error)
                        request.error = Closed() if cut_short else translated(error, self._file)
                    finished.append(request)
                del request  # or its answer would be kept until the next one comes
        finally:
            if session is not None:
                session.close()
            self._post([*finished, self._ended[number]])

    def _next(self, finished: list[Request]) -> Request | None:
        """The next request; what is finished is handed back before any wait for one."""
        if finished and len(finished) < _READ_TOGETHER:
            try:
                return self._inbox.get_nowait()
            except Empty:
                pass
        if finished:
            self._post(finished)
            finished.clear()
        return self._inbox.get()

    def _patiently(self, verb: Callable[[], A]) -> A:
        return self._file.patiently(verb, lambda: self._closing, time.sleep)

    def _read(self, session: Session, request: Request) -> None:
        session.query("begin")
        try:
            request.run(session)
        finally:
            session.rollback()
