"""Hints between the stores on one file: a FIFO each, in a folder beside the database.

What was woken stands in the database, written by the very transaction that caused it. A hint says it faster: the hash
of a channel, and which commit of which origin woke it, so that whoever hears each commit of an origin need not look. A
hint may be lost, and then the gap or the safety poll has its reader look.
"""

import errno
import logging
import os
import stat
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b

from ..._wake import Hub, Waker

__all__ = ["LOOK", "POKE", "HashedHub", "Hint", "Peers", "mark"]

log = logging.getLogger("alkstore_trio")


Hint = tuple[bytes, int, int]  # a mark, and the origin and number of the commit that woke its channel

_HINT = struct.Struct("<8sQQ")
_TICK = 1_000_000_000  # ns within which a folder may change twice under one time stamp; on most systems far less
_WHOLE = 512 // _HINT.size * _HINT.size  # bytes that a FIFO takes whole or not at all, as POSIX has it
_ATTEMPTS = 100  # at a folder that others take away
_OPENING = 60.0  # seconds that no store takes to open
_PIPE = 65_536  # bytes that one read takes
_MANY = 4_096  # bytes that may be all that a FIFO holds: when there were so many, others were lost
LOOK = (0, 0)  # in place of origin and number: whom the channel concerns has to look
POKE: Hint = (bytes(8), 0, 0)  # an application's own transaction holds wakes that nobody will announce


@lru_cache(maxsize=16_384)
def mark(channel: str) -> bytes:
    """A channel's hash, as it travels."""
    return blake2b(channel.encode(), digest_size=8).digest()


class HashedHub(Hub):
    """A hub that knows the marks of its channels."""

    __slots__ = ("marks",)

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[bytes, str] = {}

    def attach(self, channel: str, waker: Waker) -> None:
        super().attach(channel, waker)
        self.marks[mark(channel)] = channel

    def detach(self, channel: str, waker: Waker) -> None:
        super().detach(channel, waker)
        if channel not in self.channels:
            self.marks.pop(mark(channel), None)


class Peers:
    """The FIFOs of all stores on a file, this one's among them. Its methods may be called in any thread."""

    def __init__(self, path: str, prefix: str, name: str) -> None:
        self._alike = f"{prefix}:"  # of the stores on the same tables
        self._folder = f"{path}-alkstore"
        self._path = path
        self._name = f"{self._alike}{name}"
        self._own: int | None = None
        self._held_open: int | None = None
        self._others: dict[str, int] = {}
        self._known: list[str] = []
        self._listed = 0  # when the folder that was listed had last changed, in ns
        self._lock = threading.Lock()

    @property
    def descriptor(self) -> int | None:
        """What becomes readable when there is something to `read`; ``None`` where there can be no FIFO."""
        return self._own

    def open(self) -> None:
        """Make this store's FIFO, or say once that there will be none."""
        if not hasattr(os, "mkfifo"):
            log.warning("this platform has no FIFOs: stores on %r look for each other's wakes by polling", self._path)
            return
        try:
            self._make()
        except OSError as error:
            self.close()
            log.warning(
                "no FIFO in %r (%s): stores on this file look for each other's wakes by polling",
                self._folder,
                error.strerror,
            )

    def _make(self) -> None:
        mode = stat.S_IMODE(os.stat(self._path).st_mode)
        hidden, final = (os.path.join(self._folder, name) for name in (f".{self._name}", self._name))
        for left in reversed(range(_ATTEMPTS)):
            try:
                with suppress(FileExistsError):
                    os.mkdir(self._folder)
                    os.chmod(self._folder, mode | (mode & 0o444) >> 2)
                os.mkfifo(hidden)
                break
            except FileNotFoundError:  # the last store before us has just taken the folder away
                if not left:
                    raise
        self._tidy()
        os.chmod(hidden, mode)
        self._own = os.open(hidden, os.O_RDONLY | os.O_NONBLOCK)
        self._held_open = os.open(hidden, os.O_WRONLY | os.O_NONBLOCK)  # so that it never reads as ended
        os.rename(hidden, final)  # only now do others see it: one without a reader would be taken for a leftover

    def _tidy(self) -> None:
        """Remove what stores have left that were killed while they opened: by age, since others may have other pids."""
        for entry in os.scandir(self._folder):
            with suppress(OSError):
                if entry.name.startswith(".") and entry.stat().st_mtime < time.time() - _OPENING:
                    os.unlink(entry.path)

    def tell(self, hints: Iterable[Hint], *, oneself: bool = False) -> None:
        """Hint to every other store on the file."""
        message = b"".join(_HINT.pack(*hint) for hint in hints)
        with self._lock:
            if self._own is None:
                return
            for name in self._names():
                if oneself or name != self._name:
                    self._write(name, message)

    def _names(self) -> list[str]:
        """The FIFOs that there are, listed anew when the folder has changed or may have without showing it."""
        try:
            changed_at = os.stat(self._folder).st_mtime_ns
            if changed_at != self._listed:
                names = {name for name in os.listdir(self._folder) if name.startswith(self._alike)}
                for gone in self._others.keys() - names:
                    os.close(self._others.pop(gone))
                self._known = sorted(names)
                self._listed = changed_at if changed_at < time.time_ns() - _TICK else 0
        except OSError:
            return []
        return self._known

    def _write(self, name: str, message: bytes) -> None:
        try:
            descriptor = self._others.get(name)
            if descriptor is None:
                fifo = os.path.join(self._folder, name)
                descriptor = self._others[name] = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            for start in range(0, len(message), _WHOLE):
                os.write(descriptor, message[start : start + _WHOLE])
        except BlockingIOError:  # its reader sleeps, with enough in the FIFO to wake it
            pass
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.EPIPE):  # its reader is dead
                self._forget(name)

    def _forget(self, name: str) -> None:
        descriptor = self._others.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, name))

    def read(self) -> list[Hint] | None:
        """The hints that have arrived, in order; ``None`` when there were so many that some may be missing."""
        assert self._own is not None
        try:
            message = os.read(self._own, _PIPE)
        except BlockingIOError:
            return []
        if len(message) > _MANY - _WHOLE or len(message) % _HINT.size:
            return None
        return list(_HINT.iter_unpack(message))

    def close(self) -> None:
        """Take this store's FIFO away, and the folder if it was the last."""
        with self._lock:
            for name in (self._name, f".{self._name}"):
                with suppress(OSError):
                    os.unlink(os.path.join(self._folder, name))
            with suppress(OSError):
                os.rmdir(self._folder)
            for descriptor in (self._own, self._held_open, *self._others.values()):
                if descriptor is not None:
                    os.close(descriptor)
            self._others.clear()
            self._own = self._held_open = None
