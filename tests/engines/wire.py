"""The wire between a store and its Postgres server, on which the n-th exchange fails.

An exchange is what a client sends until it waits for the server (a start-up, a simple query, or extended messages up to
their Sync), with the server's answer up to its ReadyForQuery. The wire is a thread of its own between sockets, so it is
the same for either loop; it knows messages by their type and length, and of statements only which one is a commit.
"""

import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import attrs

__all__ = ["REFUSALS", "Fault", "Wire", "wired"]

_CHUNK = 2**16  # bytes
_RESET = struct.pack("ii", 1, 0)  # a linger of 0 seconds: what closes such a socket sends an RST
_LENGTH = struct.Struct("!i")
_APART = ("X", "p")  # a farewell and a password, which are no exchanges
_BOUND = 30.0  # seconds that the thread does not take to end

# A row in it has the server itself refuse the transaction's commit, with that SQLSTATE.
REFUSALS = """
create table {schema}.refusals (code text);
create function {schema}.refuse() returns trigger language plpgsql as
 $$ begin raise exception 'made to fail' using errcode = new.code; end $$;
create constraint trigger refuse after insert on {schema}.refusals
 deferrable initially deferred for each row execute function {schema}.refuse()"""


@attrs.frozen
class Fault:
    """What becomes of an exchange.

    "refused": the server refuses the statement with ``code``. "unsent": the connection is cut before the server has it.
    "unanswered": it is cut before the answer, all of which the server has given, comes back. "torn": before its last
    message does.
    """

    kind: Literal["refused", "unsent", "unanswered", "torn"]
    code: str = ""


@attrs.define(eq=False)
class _Link:
    """A client's connection with the one made for it."""

    client: socket.socket
    server: socket.socket
    asked: bytearray = attrs.field(factory=bytearray)  # of the exchange that the client is composing
    parsed: int = 0  # how much of that is whole messages
    started: bool = False
    answered: bytearray = attrs.field(factory=bytearray)  # what of an answer is held back
    fault: Fault | None = None  # what is to become of the answer
    unasked: int = 0  # answers to swallow, to what was asked in the client's name
    commits: set[bytes] = attrs.field(factory=set)  # the names under which a commit is prepared


class Wire:
    """A wire: listens on ``port`` of 127.0.0.1. Its methods may be called in any thread."""

    def __init__(self, target: str | tuple[str, int], schema: str, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self._target = target
        self._schema = schema
        self._listener = listener
        self._lock = threading.Lock()
        self._left = 0
        self._fault: Fault | None = None
        self._links: dict[socket.socket, _Link] = {}
        self._selector = selectors.DefaultSelector()
        self._over, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)

    # What a test does to it

    def fail(self, n: int, fault: Fault) -> None:
        """Have the n-th exchange from now fail; of those to be refused a start-up is none."""
        with self._lock:
            self._left, self._fault = n, fault

    def disarm(self) -> bool:
        """Have none fail; whether it has come to the one that was to."""
        with self._lock:
            reached, self._fault = self._left == 0, None
            return reached

    @property
    def descriptors(self) -> int:
        """How many of its own it has for connections."""
        with self._lock:
            return len(self._links)

    # How it works

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._over, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                side: Any = key.fileobj
                if side is self._over:
                    return
                if side is self._listener:
                    self._accept()
                elif (link := self._links.get(side)) is not None:  # else it has ended in this very round
                    self._carry(link, asks=side is link.client)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
        server.connect(self._target)
        link = _Link(client, server)
        with self._lock:
            self._links |= {client: link, server: link}
        self._selector.register(client, selectors.EVENT_READ)
        self._selector.register(server, selectors.EVENT_READ)

    def _carry(self, link: _Link, *, asks: bool) -> None:
        try:
            data = (link.client if asks else link.server).recv(_CHUNK)
            if not data:
                self._end(link, abruptly=False)
            elif asks:
                link.asked += data
                while link.client in self._links and (exchange := self._next(link)):
                    self._forward(link, *exchange)
            else:
                self._answer(link, data)
        except OSError:
            self._end(link, abruptly=True)

    def _next(self, link: _Link) -> tuple[str, bytes] | None:
        """The next exchange that is whole, and the type of its last message."""
        while True:
            head = link.parsed + link.started  # a start-up has no type
            if len(link.asked) < head + 4:
                return None
            end = head + _LENGTH.unpack_from(link.asked, head)[0]
            if len(link.asked) < end:
                return None
            kind = link.asked[link.parsed : head].decode()
            link.parsed = end
            link.started = True
            if kind in ("", "Q", "S", *_APART):
                exchange = bytes(link.asked[:end])
                del link.asked[:end]
                link.parsed = 0
                return kind, exchange

    def _forward(self, link: _Link, kind: str, exchange: bytes) -> None:
        commits = self._commits(link, exchange)
        fault = None if kind in _APART else self._due(starts=not kind)
        if fault is None:
            link.server.sendall(exchange)
        elif fault.kind == "unsent":
            self._end(link, abruptly=True)
        elif fault.kind != "refused":
            link.fault = fault
            link.server.sendall(exchange)
        elif commits:
            link.unasked += 1
            link.server.sendall(_query(f"insert into {self._schema}.refusals values ('{fault.code}')") + exchange)
        else:
            raising = f"raise exception 'made to fail' using errcode = '{fault.code}'"
            link.server.sendall(_query(f"do $$ begin {raising}; end $$"))

    def _due(self, *, starts: bool) -> Fault | None:
        """What is to become of the next exchange."""
        with self._lock:
            fault = self._fault
            if fault is None or self._left == 0 or (starts and fault.kind == "refused"):
                return None
            self._left -= 1
            return None if self._left else fault

    def _commits(self, link: _Link, exchange: bytes) -> bool:
        """Whether an exchange executes a commit that was prepared under some name."""
        if exchange[:1] == b"P":
            name, text, _ = exchange[5:].split(b"\0", 2)
            if text == b"commit":
                link.commits.add(name)
        return exchange[:1] == b"B" and exchange[5:].split(b"\0", 2)[1] in link.commits

    def _answer(self, link: _Link, data: bytes) -> None:
        link.answered += data
        while (link.unasked or link.fault) and (last := _last_message(link.answered)):
            if link.unasked:
                link.unasked -= 1
                del link.answered[: last.stop]
            else:
                if link.fault is not None and link.fault.kind == "torn":
                    link.client.sendall(link.answered[: last.start])
                self._end(link, abruptly=link.fault is not None and link.fault.kind == "unanswered")
                return
        if not link.unasked and link.fault is None:
            link.client.sendall(link.answered)
            link.answered.clear()

    def _end(self, link: _Link, *, abruptly: bool) -> None:
        with self._lock:
            for side in (link.client, link.server):
                del self._links[side]
        for side in (link.client, link.server):
            self._selector.unregister(side)
            if abruptly and side is link.client:
                with suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            side.close()

    def _close(self) -> None:
        self._waker.send(b"x")
        self._thread.join(_BOUND)
        for link in set(self._links.values()):
            self._end(link, abruptly=True)
        self._selector.close()
        self._over.close()
        self._waker.close()


def _query(text: str) -> bytes:
    """A simple query, as it travels."""
    body = text.encode() + b"\0"
    return b"Q" + _LENGTH.pack(len(body) + 4) + body


def _last_message(answer: bytearray) -> slice | None:
    """Where the first ReadyForQuery is in some messages."""
    start = 0
    while len(answer) >= start + 5:
        end = start + 1 + _LENGTH.unpack_from(answer, start + 1)[0]
        if len(answer) >= end and answer[start : start + 1] == b"Z":
            return slice(start, end)
        start = end
    return None


@contextmanager
def wired(target: str | tuple[str, int], schema: str) -> Iterator[Wire]:
    """A wire to a Unix socket or to a host and port, and a schema there that has `REFUSALS`; at its end all is cut."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        wire = Wire(target, schema, listener)
        wire._thread.start()
        try:
            yield wire
        finally:
            wire._close()
