"""Wakes are only hints: the suite where nothing of the library's own is woken by any, or everything by each.

``--wakes=dropped`` leaves polling, whose interval is shortened to milliseconds of real time: whatever waits on the
manual clock looks again by itself. ``--wakes=spurious`` wakes everybody whenever anybody is. A user's notifies arrive
as ever.
"""

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from coverage import Coverage

from alkstore_trio import Store
from alkstore_trio.testing import ManualClock
from alkstore_trio.testing.conformance import clocks, driving
from tests.meddling import Wakes, meddle

_POLL = 0.001  # seconds
_LOOKS = {"test_memory": 0.02}  # seconds in which all have looked and acted
_LOOKS_ELSEWHERE = 0.05

# They count how often somebody looks, which is what is meddled with.
_COUNT_WAKES = {
    "test_a_sleeping_runner_renews_at_least_every_two_seconds_and_never_spins",
    "test_idle_workers_are_not_woken_by_other_queues",
}
_COUNT_LOOKS = _COUNT_WAKES | {
    "test_a_heartbeat_that_brings_a_deadline_nearer_wakes_a_worker_and_a_plain_one_does_not",
    "test_a_sleeping_hold_renews_in_time_and_never_spins",
    "test_a_waiter_does_not_spin",
    "test_a_worker_never_spins",
    "test_a_worker_waits_longer_and_longer_for_a_store_that_is_away_and_caps_it",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wakes = config.getoption("--wakes")
    counting = {"dropped": _COUNT_LOOKS, "spurious": _COUNT_WAKES}.get(wakes, set())
    for item in items:
        if item.name.partition("[")[0] in counting:
            item.add_marker(pytest.mark.skip(reason=f"counts what is {wakes}"))


@pytest.fixture(autouse=True, scope="module")
def _covered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Measure coverage on memory only: it slows a run down, and `tests/engines` cover what is another engine's."""
    coverage = Coverage.current()
    if coverage is None or request.path.stem == "test_memory":
        yield
    else:
        coverage.stop()
        yield
        coverage.start()


@pytest.fixture(autouse=True)
def _wakes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleeping_little(clock: ManualClock, seconds: float) -> None:
        await anyio.sleep(_POLL)  # in no scope: anyio may lose a bare cancellation where one ends as its parent does

    async def not_counting(counter: Any, store: Store) -> None:
        await driving.rest(store)
        counter.asked.clear()

    wakes: Wakes | None = request.config.getoption("--wakes")
    if wakes is None:
        return
    meddle(monkeypatch, lambda: wakes)
    if wakes == "dropped":
        monkeypatch.setattr(ManualClock, "sleep", sleeping_little)
        monkeypatch.setattr(driving, "_LOOKS", _LOOKS.get(request.path.stem, _LOOKS_ELSEWHERE))
        monkeypatch.setattr(clocks._Counter, "is_calm", not_counting)
