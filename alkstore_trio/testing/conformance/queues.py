"""Queues: stamps, claims, the state machine, the dead."""

import pytest

from ..._store import Store
from .._clocks import ManualClock
from .kit import Effects


async def test_claims_go_by_priority_then_run_at_then_id(effects: Effects, store: Store, clock: ManualClock) -> None:
    late = await effects.enqueue("q", "late", run_at=clock() - 1)
    early = await effects.enqueue("q", "early", run_at=clock() - 2)
    first_of_two = await effects.enqueue("q", "a", priority=1)
    second_of_two = await effects.enqueue("q", "b", priority=1)
    claims = await store.queue("q").claim_batch("w", 10)
    assert [handle.job.id for handle in claims] == [first_of_two, second_of_two, early, late]


@pytest.mark.parametrize("n", [0, -1, -(2**70)])
async def test_a_batch_of_none_claims_nothing(store: Store, n: int) -> None:
    await store.queue("q").enqueue("x")
    assert await store.queue("q").claim_batch("w", n) == []
    assert (await store.queue("q").statistics()).ready == 1
