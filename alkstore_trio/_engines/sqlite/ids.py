"""Job ids that a store has reserved from the file's one counter and has not given to anybody.

They are given out in the loop, so that they keep the order of enqueueing whatever commits first.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import anyio

__all__ = ["BLOCK", "Ids", "Pool"]

BLOCK = 256  # ids that are reserved at a time
_LOW = 128  # ids left with which the next block is asked for


class Pool:
    """Ids in ascending order."""

    __slots__ = ("_last", "_ranges", "left")

    def __init__(self) -> None:
        self._ranges: deque[range] = deque()
        self._last = 0  # the greatest that was taken
        self.left = 0

    def add(self, ids: range) -> None:
        """Put in ids that are greater than all that are here."""
        if ids:
            self._ranges.append(ids)
            self.left += len(ids)

    def take(self, n: int) -> Sequence[int] | None:
        """The first ``n``; ``None`` if there are fewer."""
        if n > self.left:
            return None
        self.left -= n
        taken: list[int] = []
        while len(taken) < n:
            first = self._ranges[0]
            cut = n - len(taken)
            taken += first[:cut]
            if cut < len(first):
                self._ranges[0] = first[cut:]
            else:
                self._ranges.popleft()
        if taken:
            self._last = taken[-1]
        return taken

    def put_back(self, ids: Sequence[int]) -> None:
        """Ids that were not needed after all; they are gaps if greater ones have been taken since."""
        if ids[-1] == self._last:
            for job_id in reversed(ids):
                self._ranges.appendleft(range(job_id, job_id + 1))
            self._last = ids[0] - 1
            self.left += len(ids)

    def empty(self) -> list[range]:
        """All that are left."""
        ranges = list(self._ranges)
        self._ranges.clear()
        self.left = 0
        return ranges


class Ids(Pool):
    """The pool of a store, which asks for more before it runs dry."""

    __slots__ = ("_ask", "_filling", "_reserve", "asked")

    def __init__(self, reserve: Callable[[int], Awaitable[object]], ask: Callable[[], None]) -> None:
        super().__init__()
        self._reserve = reserve  # has so many added, and waits for it
        self._ask = ask  # has a block added some time
        self.asked = False  # and not answered yet
        self._filling = anyio.Lock(fast_acquire=True)

    def take(self, n: int) -> Sequence[int] | None:
        ids = super().take(n)
        if self.left < _LOW and not self.asked:
            self.asked = True
            self._ask()
        return ids

    async def get(self, n: int) -> Sequence[int]:
        """The first ``n``, reserved if need be."""
        while (ids := self.take(n)) is None:
            async with self._filling:
                if n > self.left:
                    await self._reserve(max(n - self.left, BLOCK))
        return ids
