"""Where calls of one kind that wait together travel together: one statement, one commit, each with its own answer.

The first to come sends its own; those that come while it is under way go together when it has ended, many of them in
two halves, sent by a task of the store's, so that no caller's end holds the others up. Nobody waits for company for any
length of time; but where there was some of late, the first to come gives others one turn of the loop, so as not to
leave without them. A call that is not sent yet can be withdrawn; one that is sent is waited for. What the server
refuses as a whole is asked again one by one.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from time import perf_counter
from typing import Generic, TypeVar

import anyio

from ..._errors import Closed, CommitUnknown, DatabaseError
from ..._loop import Event, insist

__all__ = ["Company", "Lane", "size_of"]

Q = TypeVar("Q")
A = TypeVar("A")

_PATIENCE = 5.0  # seconds that one who is cancelled waits for what travels with others, before it is called off
_TOGETHER = 500  # rows of up to 8 KiB, or one call that has more
_MANY = 300  # rows, of which one half goes: 400 were claimed and acked in 0.85 of the time that they took as one
_CALL = 4  # rows, which are as much work for the loop as a call is besides its own; it counts where commits are quick
_QUICK = 0.0015  # seconds; the loop needs as long for some 50 calls
_ROW = 8_192
_OF_LATE = 8  # departures


def size_of(bodies: Sequence[str]) -> int:
    """What some bodies take up of what may go together."""
    return len(bodies) + sum(len(body) // _ROW for body in bodies)


class Company:
    """Whether those who use a lane, or the lanes of a kind, have gone together of late, and how that was."""

    __slots__ = ("_left", "quick")

    def __init__(self) -> None:
        self._left = 0
        self.quick = False  #: whether the last departure was

    @property
    def expected(self) -> bool:
        """Whether it is worth a turn of the loop."""
        return self._left > 0

    def went(self, together: int) -> None:
        """So many have gone together, or one alone."""
        self._left = _OF_LATE if together > 1 else max(self._left - 1, 0)


class _Call(Generic[Q, A]):
    """Somebody's op on its way."""

    __slots__ = ("answer", "done", "error", "given_up", "op", "sent", "size", "undone")

    def __init__(self, op: Q, size: int, done: Event) -> None:
        self.op = op
        self.size = size
        self.done = done
        self.sent = False
        self.given_up = False  # whether its caller is cancelled
        self.undone = False  # whether it was called off therefore
        self.answer: A
        self.error: BaseException | None = None


class Lane(Generic[Q, A]):
    """A lane for one kind of op."""

    __slots__ = (
        "_answered",
        "_busy",
        "_closed",
        "_company",
        "_emptied",
        "_event",
        "_forget",
        "_last",
        "_patience",
        "_pause",
        "_send_all",
        "_size",
        "_start_soon",
        "_waiting",
    )

    def __init__(
        self,
        send: Callable[[Sequence[Q]], Awaitable[list[A]]],
        size: Callable[[Q], int],
        answered: Callable[[Sequence[Q], Sequence[A]], object],
        start_soon: Callable[[Callable[[], Awaitable[None]]], object],
        event: Callable[[], Event],
        pause: Callable[[], Awaitable[object]],
        company: Company,
        forget: Callable[[], object],
    ) -> None:
        self._send_all = send
        self._size = size
        self._answered = answered  # called before whoever waits for the answer goes on
        self._start_soon = start_soon  # a task of the store's
        self._waiting: deque[_Call[Q, A]] = deque()
        self._event = event  # the loop's own
        self._pause = pause  # while all others have a turn
        self._company = company
        self._forget = forget  # called when nobody is in it any more
        self._busy = False
        self._last = 0  # the work of the last departure
        self._closed = False
        self._patience: anyio.CancelScope  # with what is under way together
        self._emptied: Event | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody is in it."""
        return not self._busy and not self._waiting

    async def do(self, op: Q) -> A:
        """The answer to an op."""
        if self._busy:
            call = self._called(op)
            self._waiting.append(call)
        else:
            self._busy = True
            try:
                if self._company.expected:
                    await self._pause()
                    if self._closed:
                        raise Closed
                if not self._waiting:
                    self._company.went(1)
                    return await self._send_one(op)
                call = self._called(op)
                self._waiting.appendleft(call)
            finally:
                self._end()
                self._go_on()
        try:
            await call.done.wait()
        except BaseException as interruption:
            if not call.sent:
                self._waiting.remove(call)
                raise
            if not call.done.is_set():  # else others are under way
                call.given_up = True
                self._patience.deadline = min(self._patience.deadline, anyio.current_time() + _PATIENCE)
            await insist(call.done, interruption, lambda: call.undone)
        if call.error is not None:
            raise call.error
        return call.answer

    def _called(self, op: Q) -> _Call[Q, A]:
        return _Call(op, self._size(op), self._event())

    async def emptied(self) -> None:
        """Wait until nothing is under way."""
        while not self.idle:
            self._emptied = self._event()
            await self._emptied.wait()

    def _end(self) -> None:
        self._busy = False
        if not self._waiting:
            self._forget()
            if self._emptied is not None:
                self._emptied.set()

    def close(self) -> None:
        """Refuse whoever waits."""
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.sent, call.error = True, Closed()
            call.done.set()

    def _go_on(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            self._start_soon(self._serve)

    async def _send_one(self, op: Q) -> A:
        answers = await self._send_all([op])
        self._answered([op], answers)
        return answers[0]

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._send(self._next())
        finally:
            self._last = 0
            self._end()

    def _next(self) -> list[_Call[Q, A]]:
        """Those who go now: of many one half, so that the loop has its answers while the server has the other.

        Among the many are those who were answered last, for they are expected back.
        """
        besides = _CALL if self._company.quick else 0
        work = self._last
        for call in self._waiting:
            work += call.size + besides
            if work > 2 * _TOGETHER:  # more than two departures take
                break
        enough = work / 2 if work > _MANY else work
        calls: list[_Call[Q, A]] = []
        done = rows = 0
        while self._waiting and (done < enough or not calls):  # there are calls of no rows
            call = self._waiting[0]
            if calls and rows + call.size > _TOGETHER:
                break
            rows += call.size
            done += call.size + besides
            call.sent = True
            calls.append(self._waiting.popleft())
        self._last = min(done, _TOGETHER)
        return calls

    async def _send(self, calls: list[_Call[Q, A]]) -> None:
        """Have some calls answered, whatever happens."""
        self._company.went(len(calls))
        try:
            with anyio.CancelScope() as self._patience:
                asked = [call.op for call in calls]
                left = perf_counter()
                answers = await self._send_all(asked)
                self._company.quick = perf_counter() - left < _QUICK
                self._answered(asked, answers)
                self._tell(calls, answers)
                return
            self._undo(calls)
            return
        except DatabaseError as error:
            if len(calls) == 1 or error.transient or isinstance(error, CommitUnknown):
                self._fail(calls, error)
                return
        except Exception as error:
            self._fail(calls, error)
            return
        except BaseException:  # the store is closing, and the statement did nothing
            self._fail(calls, Closed())
            raise
        for call in calls:
            await self._send([call])

    def _undo(self, calls: Sequence[_Call[Q, A]]) -> None:
        """Nothing has come of some calls: those who have not given up wait again, before all others."""
        self._last = 0
        for call in reversed(calls):
            if call.given_up:
                call.undone = True
                call.done.set()
            else:
                call.sent = False
                self._waiting.appendleft(call)

    def _tell(self, calls: Sequence[_Call[Q, A]], answers: Sequence[A]) -> None:
        for call, answer in zip(calls, answers, strict=True):
            call.answer = answer
            call.done.set()

    def _fail(self, calls: Sequence[_Call[Q, A]], error: Exception) -> None:
        for call in calls:
            call.error = copy(error)  # each is raised in a task of its own
            call.error.__cause__ = error.__cause__
            call.done.set()
