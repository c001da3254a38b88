"""Wakes between hosts: one connection that listens for a store, and one by which it tells the others.

All wakes of a schema travel on one channel of the server's, as the name of the channel that fired behind the mark of
the store that fired it; a store wakes its own by itself and takes no notice of its own marks. What is told goes out
after its commit and apart from it, since a NOTIFY inside a transaction makes all commits of the server wait for each
other. A wake is a hint: whoever is told nothing looks again by itself.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from uuid import uuid4

import anyio

from ..._errors import DatabaseError
from ..._loop import unbroken
from ..._wake import Hub
from . import sqlops
from .connection import AsyncAnyioConnection
from .server import Server

__all__ = ["UNMARKED", "Ears", "Voice", "new_mark", "server_channel"]

log = logging.getLogger("alkstore_trio")

_MARK = 8  # characters before the name of a channel
UNMARKED = "-" * _MARK  # of a transaction that the store has joined: its own commit it does not see

_QUIET = 0.005  # seconds between two statements that tell
_PROBE = 30.0  # seconds without a wake after which the listening connection is asked whether it lives
_ANSWER = 5.0  # seconds that it has to answer
_FIRST_RETRY, _LAST_RETRY = 0.05, 10.0  # seconds between attempts to listen again
_LAST_WORDS = 1.0  # seconds that closing waits for what is still to be told


def server_channel(schema: str) -> str:
    """The one channel of the server's on which a schema's wakes travel."""
    return f"alk_{blake2b(schema.encode(), digest_size=12).hexdigest()}"


class Ears:
    """The listening connection: feeds the hub with what others fire, and is replaced when it is lost."""

    def __init__(self, server: Server, channel: str, mark: str, hub: Hub) -> None:
        self._server = server
        self._channel = channel
        self._mark = mark
        self._hub = hub
        self._connection: AsyncAnyioConnection | None = None

    async def open(self) -> None:
        """Listen, from when this returns."""
        connection = await self._server.connect()
        try:
            with self._server.telling(), anyio.fail_after(_ANSWER):
                await connection.listen(self._channel)
            if connection.pooled:
                log.warning(
                    "%s: the connection that listens for wakes leads through a pooler; if that is not in session mode, "
                    "no wake comes through: give listen_dsn a way around it, or wakes='poll'",
                    self._server.where,
                )
        except BaseException:
            connection.abort()
            raise
        self._connection = connection

    async def hear(self) -> None:
        """Wake whoever is concerned, until cancelled."""
        try:
            while True:
                try:
                    with self._server.telling():
                        await self._hear()
                except DatabaseError as error:
                    log.warning("the connection that listens for wakes: %s; connecting again", error)
                await self._listen_again()
        finally:
            if self._connection is not None:
                self._connection.abort()

    async def _hear(self) -> None:
        connection = self._connection
        assert connection is not None
        while True:
            with anyio.move_on_after(_PROBE):
                told = await connection.notified()
                self._hub.fire(
                    notify.payload[_MARK:]
                    for notify in told
                    if notify.channel == self._channel and notify.payload[:_MARK] != self._mark
                )
                continue
            with anyio.fail_after(_ANSWER):
                await connection.run("select 1", ())

    async def _listen_again(self) -> None:
        wait = _FIRST_RETRY
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        while True:
            try:
                await self.open()
            except DatabaseError as error:
                log.debug("cannot listen for wakes yet: %s", error)
                await anyio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, _LAST_RETRY)
            else:
                self._hub.reconnected()
                return


class Voice:
    """Tells the other stores what this one's commits woke: the first at once, then what has gathered meanwhile."""

    def __init__(
        self,
        server: Server,
        channel: str,
        mark: str,
        start_soon: Callable[[Callable[[], Awaitable[None]]], object],
    ) -> None:
        self._server = server
        self._channel = channel
        self._mark = mark
        self._start_soon = start_soon
        self._waiting: dict[str, None] = {}
        self._speaking = False
        self._connection: AsyncAnyioConnection | None = None
        self._closed = False

    def tell(self, channels: Iterable[str]) -> None:
        """Have channels fired in other stores, soon."""
        self._waiting.update(dict.fromkeys(channels))
        if self._waiting and not self._speaking and not self._closed:
            self._speaking = True
            self._start_soon(self._speak)

    def payloads(self, channels: Iterable[str]) -> list[str]:
        """Channels as they travel."""
        return [self._mark + channel for channel in channels]

    async def _speak(self) -> None:
        try:
            while self._waiting:
                await self._say()
                await anyio.sleep(_QUIET)
        finally:
            self._speaking = False

    async def _say(self) -> None:
        waiting, self._waiting = self._waiting, {}
        try:
            with self._server.telling():
                if self._connection is not None and not self._connection.alive:
                    self._drop()
                if self._connection is None:
                    self._connection = await self._server.connect()
                    if not self._connection.pooled:
                        await self._connection.run("set synchronous_commit = off")
                with anyio.fail_after(_ANSWER):
                    await self._server.run(self._connection, sqlops.tell(self._channel, self.payloads(waiting)))
        except DatabaseError as error:
            log.warning("other stores could not be told of wakes, and look by themselves: %s", error)
            self._drop()
        except BaseException:
            self._waiting = waiting | self._waiting
            self._drop()
            raise

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def close(self) -> None:
        """Say what is still to be said, in bounded time, and fall silent."""
        self._closed = True

        async def last_words() -> None:
            with anyio.move_on_after(_LAST_WORDS):
                if self._waiting:
                    await self._say()

        await unbroken(last_words)
        self._drop()


def new_mark() -> str:
    """A mark that no other store has."""
    return uuid4().hex[:_MARK]
