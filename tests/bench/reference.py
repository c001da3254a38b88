"""The floors that the store is measured against: the least that could be called a queue, or a stream, on trio.

No leases, no retries, no transactions, no checks. The codec is built once and kept, as the store's is.
"""

import time
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from json import JSONDecoder
from json import encoder as json_encoder
from typing import Any

__all__ = ["ReferenceQueue", "ReferenceStream"]

Check = Callable[[], Awaitable[object]]

_c_make_encoder: Any = json_encoder.c_make_encoder  # type: ignore[attr-defined]  # not in the type stubs
_chunks = _c_make_encoder(None, str, json_encoder.encode_basestring, None, ":", ",", False, False, False)
_scan: Any = JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in the type stubs


class ReferenceQueue:
    """A heap of (-priority, run_at, id), a dict of rows, and a cancellation check in each verb."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._heap: list[tuple[int, float, int]] = []
        self._rows: dict[int, list[Any]] = {}
        self._last = 0

    async def enqueue(self, payload: object, priority: int = 0, delay: float = 0.0) -> int:
        await self._check()
        self._last += 1
        self._rows[self._last] = ["".join(_chunks(payload, 0)), priority, 0, None, None]
        heappush(self._heap, (-priority, time.time() + delay, self._last))
        return self._last

    async def claim(self, worker_id: str) -> tuple[int, Any] | None:
        await self._check()
        heap = self._heap
        now = time.time()
        if not heap or heap[0][1] > now:
            return None
        job_id = heappop(heap)[2]
        row = self._rows[job_id]
        row[2] += 1
        row[3] = worker_id
        row[4] = now + 300
        return job_id, _scan(row[0], 0)[0]

    async def ack(self, job_id: int) -> bool:
        await self._check()
        return self._rows.pop(job_id, None) is not None


class ReferenceStream:
    """A list of (offset, body), a dict of saved offsets, and a cancellation check in each verb."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._events: list[tuple[int, str]] = []
        self._saved: dict[str, int] = {}

    async def publish(self, payload: object) -> int:
        await self._check()
        offset = len(self._events) + 1
        self._events.append((offset, "".join(_chunks(payload, 0))))
        return offset

    async def read(self, consumer: str, limit: int) -> list[tuple[int, str]]:
        await self._check()
        start = self._saved.get(consumer, 0)
        return self._events[start : start + limit]

    async def save(self, consumer: str, offset: int) -> None:
        await self._check()
        self._saved[consumer] = offset

    @staticmethod
    def decode(body: str) -> Any:
        return _scan(body, 0)[0]
