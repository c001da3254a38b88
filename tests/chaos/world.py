"""What all processes of a run share besides the store: how far the clock is off, and what becomes of wakes."""

import mmap
import os
import struct
import time
from pathlib import Path

import pytest

from tests.meddling import Wakes, meddle

__all__ = ["World"]

_host = time.time
_WAKES: tuple[Wakes, ...] = ("as they come", "dropped", "spurious")
_FIELDS = struct.Struct("ddd")


class World:
    """A file of three numbers, mapped into every process: a change is seen at once.

    ``decides`` says whether its clock is that of the stores, or only one that is wrong.
    """

    def __init__(self, file: Path, decides: bool) -> None:
        self._decides = decides
        handle = os.open(file, os.O_RDWR | os.O_CREAT)
        os.ftruncate(handle, _FIELDS.size)
        self._map = mmap.mmap(handle, _FIELDS.size)
        os.close(handle)

    def _get(self) -> tuple[float, float, float]:
        return _FIELDS.unpack_from(self._map)

    def clock(self) -> float:
        """Unix time, with the steps that the run has taken."""
        return _host() + self._get()[0]

    @property
    def steps(self) -> int:
        """How many steps the clock of the stores has taken."""
        return int(self._get()[1]) if self._decides else 0

    def may_have_read(self, instant: float) -> bool:
        """Whether the clock of the stores can have said so since it was set last."""
        return not self._decides or instant <= self.clock()

    @property
    def wakes(self) -> Wakes:
        """What becomes of the library's own wakes now."""
        return _WAKES[int(self._get()[2])]

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        offset, steps, wakes = self._get()
        _FIELDS.pack_into(self._map, 0, offset + seconds, steps + 1, wakes)

    def have_wakes(self, wakes: Wakes) -> None:
        """Decide what becomes of wakes from now on."""
        offset, steps, _ = self._get()
        _FIELDS.pack_into(self._map, 0, offset, steps, _WAKES.index(wakes))

    def meddle(self) -> None:
        """Have it be so in this process, for good."""
        if not self._decides:
            time.time = self.clock
        meddle(pytest.MonkeyPatch(), lambda: self.wakes)
