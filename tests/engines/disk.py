"""A disk that fails on demand, below SQLite: a layer over its own access to files that has the n-th operation fail.

It also knows what a power cut would leave of each file: what was there when it was last synced, and nothing since.

SQLite asks the system through a table of functions (its VFS). Here that table is the platform's own, but for the
functions that read, write, sync and lock, which are counted first. It is put in place by `ctypes`, in the very library
that the interpreter's ``sqlite3`` is linked to; where that cannot be found, `NO_DISK` says so. Who looks at a file from
outside names the platform's own table: `aside`.
"""

import _sqlite3
import ctypes
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

__all__ = ["NO_DISK", "Disk", "aside", "failing_disk"]

_File = c_void_p
_FUNCTIONS: dict[str, Any] = {  # of a file, in the table's order
    "close": CFUNCTYPE(c_int, _File),
    "read": CFUNCTYPE(c_int, _File, c_void_p, c_int, c_int64),
    "write": CFUNCTYPE(c_int, _File, c_void_p, c_int, c_int64),
    "truncate": CFUNCTYPE(c_int, _File, c_int64),
    "sync": CFUNCTYPE(c_int, _File, c_int),
    "file_size": CFUNCTYPE(c_int, _File, c_void_p),
    "lock": CFUNCTYPE(c_int, _File, c_int),
    "unlock": CFUNCTYPE(c_int, _File, c_int),
    "check_reserved_lock": CFUNCTYPE(c_int, _File, c_void_p),
    "file_control": CFUNCTYPE(c_int, _File, c_int, c_void_p),
    "sector_size": CFUNCTYPE(c_int, _File),
    "device_characteristics": CFUNCTYPE(c_int, _File),
    "shm_map": CFUNCTYPE(c_int, _File, c_int, c_int, c_int, c_void_p),
    "shm_lock": CFUNCTYPE(c_int, _File, c_int, c_int, c_int),
    "shm_barrier": CFUNCTYPE(None, _File),
    "shm_unmap": CFUNCTYPE(c_int, _File, c_int),
    "fetch": CFUNCTYPE(c_int, _File, c_int64, c_int, c_void_p),
    "unfetch": CFUNCTYPE(c_int, _File, c_int64, c_void_p),
}
_ERRORS = {  # what fails, and what SQLite calls it
    "read": sqlite3.SQLITE_IOERR_READ,
    "write": sqlite3.SQLITE_IOERR_WRITE,
    "truncate": sqlite3.SQLITE_IOERR_TRUNCATE,
    "sync": sqlite3.SQLITE_IOERR_FSYNC,
    "file_size": sqlite3.SQLITE_IOERR_FSTAT,
    "lock": sqlite3.SQLITE_IOERR_LOCK,
    "shm_map": sqlite3.SQLITE_IOERR_SHMMAP,
    "shm_lock": sqlite3.SQLITE_IOERR_SHMLOCK,
}
_UNLOCKS = 1  # the flag of a "shm_lock" that gives a lock back, which cannot fail
_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, _File, c_int, c_void_p)  # a file keeps the pointer to its name


class _Methods(ctypes.Structure):
    _fields_ = [("version", c_int), *((name, c_void_p) for name in _FUNCTIONS)]


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("version", c_int),
        ("size_of_file", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        *((f"function_{number}", c_void_p) for number in range(14)),
    ]


class Disk:
    """The layer, put in place once and for good; `failing_disk` has SQLite use it."""

    def __init__(self) -> None:
        self.library: Any = ctypes.CDLL(_sqlite3.__file__)
        self.library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        self.failed = ""  #: the operation that failed last
        self.all_failed: set[str] = set()
        self.synced: dict[Path, bytes] | None = None  #: what is in each file for good; None: not looked at
        self._lock = threading.Lock()
        self._left = 0
        self._for_good = False
        self._tables: dict[int, Any] = {}
        self._paths: dict[int, Path] = {}  # of the files that are open
        self._kept: list[Any] = []  # what SQLite has pointers to
        own = self.library.sqlite3_vfs_find(None).contents
        self._open = _Open(own.open)
        opened = _Open(self._opened)
        self.layer = _Vfs.from_buffer_copy(own)
        self.layer.name = b"failing"
        self.layer.open = ctypes.cast(opened, c_void_p)
        self._kept.append(opened)

    def fail(self, n: int, *, for_good: bool = False) -> None:
        """Have the n-th operation from now fail, and all that follow if it is for good."""
        with self._lock:
            self._left, self._for_good, self.failed = n, for_good, ""
            self.all_failed.clear()

    def mend(self) -> bool:
        """Have none fail; whether one has."""
        with self._lock:
            self._left = 0
            return bool(self.failed)

    def _fails(self, name: str) -> bool:
        with self._lock:
            if self._left == 0:
                return False
            self._left -= 1
            if self._left:
                return False
            self._left = int(self._for_good)
            self.failed = name
            self.all_failed.add(name)
            return True

    def _opened(self, vfs: int, name: int, file: int, flags: int, out: int) -> int:
        code: int = self._open(vfs, name, file, flags, out)
        methods = c_void_p.from_address(file)  # the first thing in a file
        if code == sqlite3.SQLITE_OK and methods.value:
            if name:
                self._paths[file] = Path(os.fsdecode(ctypes.string_at(name)))
            if methods.value not in self._tables:
                self._tables[methods.value] = self._layered(_Methods.from_address(methods.value))
            methods.value = ctypes.addressof(self._tables[methods.value])
        return code

    def _layered(self, own: _Methods) -> _Methods:
        layered = _Methods.from_buffer_copy(own)
        for name, error in _ERRORS.items():
            if address := getattr(own, name):  # there is no shared memory but that of a database
                function = self._counted(name, _FUNCTIONS[name](address), error)
                setattr(layered, name, ctypes.cast(function, c_void_p))
                self._kept.append(function)
        return layered

    def _counted(self, name: str, own: Any, error: int) -> Any:
        def counted(file: int, *arguments: int) -> int:
            if (name == "shm_lock" and arguments[2] & _UNLOCKS) or not self._fails(name):
                code: int = own(file, *arguments)
                if name == "sync" and code == sqlite3.SQLITE_OK and self.synced is not None:
                    self.synced[self._paths[file]] = self._paths[file].read_bytes()
                return code
            if name == "write":  # half of it
                buffer, size, offset = arguments
                own(file, buffer, size // 2, offset)
            return error

        return _FUNCTIONS[name](counted)


def _found() -> Disk | None:
    try:
        return Disk()
    except (AttributeError, OSError):
        return None


_DISK = _found()
NO_DISK = "" if _DISK else "the SQLite library of this interpreter cannot be found"


@contextmanager
def failing_disk() -> Iterator[Disk]:
    """Have whatever is opened during the block, and closed by its end, go through the layer."""
    assert _DISK is not None, NO_DISK
    assert _DISK.library.sqlite3_vfs_register(ctypes.byref(_DISK.layer), 1) == sqlite3.SQLITE_OK
    try:
        yield _DISK
    finally:
        _DISK.mend()
        _DISK.synced = None
        _DISK.library.sqlite3_vfs_unregister(ctypes.byref(_DISK.layer))


def aside(path: Path, timeout: float = 0.0) -> sqlite3.Connection:
    """A connection past the layer, which does not checkpoint by itself."""
    connection = sqlite3.connect(f"{path.as_uri()}?vfs=unix", uri=True, timeout=timeout, isolation_level=None)
    connection.execute("pragma wal_autocheckpoint = 0")
    return connection
