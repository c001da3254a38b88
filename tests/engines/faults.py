"""What the sweeps of faults have in common: which calls they have fail, and where, and a clock that lets nobody wait.

The memory engine is in none of them: it does no I/O, so that all that can fail in it is a cancellation, which the
conformance suite has strike at every suspension.
"""

from collections.abc import Iterator

import anyio

from alkstore_trio._rules.bounds import Seconds
from alkstore_trio.testing import ManualClock
from alkstore_trio.testing.conformance.verbs import BLOCKS, VERBS, Arrangement

__all__ = ["CASES", "HOSTED", "PATIENT", "START", "TABLES", "HurriedClock", "places"]

TABLES = ("jobs", "streams", "events", "offsets", "locks", "schedules")

_BLINK = 0.001  # seconds
_MOST = 1_000  # places; nothing has nearly as many

_TRANSACTIONS = ("Store.with_tx", "Store.transaction", "Store.begin_tx")

CASES: dict[str, Arrangement] = VERBS | {name: BLOCKS[name] for name in _TRANSACTIONS}  # each does nothing or all

PATIENT = ("Outbox.run_delivery", "Queue.run_worker")  # which no passing failure ends

# What is made of several verbs. The runner of schedules has tests of its own: here its caller would fail before it.
HOSTED: dict[str, Arrangement] = {name: BLOCKS[name] for name in BLOCKS.keys() - CASES.keys() - {"Store.run_schedules"}}

START = ManualClock()()


def places(about: str) -> Iterator[int]:
    """1, 2, ...: where to have something fail in turn, until whoever sweeps sees that a place was not reached."""
    yield from range(1, _MOST)
    raise AssertionError(f"{about} has no end")


class HurriedClock(ManualClock):
    """A clock on which whoever sleeps makes time pass."""

    async def sleep(self, seconds: Seconds) -> None:
        await anyio.sleep(_BLINK)
        self.advance(seconds)
