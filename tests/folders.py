"""Where tests keep the files whose durability is not what they test."""

from pathlib import Path

__all__ = ["FOLDER"]

_SHARED_MEMORY = Path("/dev/shm")  # a disk that costs nothing, where there is one

FOLDER = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None  # for `TemporaryDirectory`
