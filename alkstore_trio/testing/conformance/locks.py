"""Locks: holds, their tokens, how they lapse, and `hold_lock`."""

from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from typing import Any

import anyio
import pytest

from ..._engine import Traits
from ..._errors import (
    Closed,
    DatabaseError,
    InvalidName,
    LockHeld,
    LockLost,
    ReservedName,
)
from ..._lock import LockHandle
from ..._ops import Op, Renew, TryLock, Unlock
from ..._store import Store
from .._clocks import ManualClock
from .driving import PASSING, Failing, Failure, passing, rest, to_be_cancelled, watched

_SLICE = 2.0  # seconds within which a waiter tries again


async def _taken(store: Store, owner: str = "a", ttl: float = 10, name: str = "lock") -> LockHandle:
    lock = await store.try_lock(name, owner, ttl)
    assert lock is not None
    return lock


async def _is_free(store: Store, name: str = "lock") -> bool:
    """Whether anybody may take the lock; the one who asks gives it back."""
    lock = await store.try_lock(name, "inspector", 1)
    return lock is not None and await lock.release()


# Holds


async def test_a_lock_is_held_until_it_is_released(store: Store) -> None:
    lock = await _taken(store)
    assert (lock.name, lock.owner) == ("lock", "a")
    assert await store.try_lock("lock", "b", 10) is None
    assert await lock.release() is True
    assert await store.try_lock("lock", "b", 10) is not None


async def test_locks_of_different_names_do_not_meet(store: Store) -> None:
    await _taken(store, name="one")
    assert await store.try_lock("two", "b", 10) is not None


async def test_a_hold_lapses_exactly_at_its_ttl(store: Store, clock: ManualClock) -> None:
    start = clock()
    await _taken(store, ttl=10)
    clock.set(start + 9.999)
    assert await store.try_lock("lock", "b", 10) is None
    clock.set(start + 10)
    assert await store.try_lock("lock", "b", 10) is not None


@pytest.mark.parametrize("ttl", [0.25, timedelta(milliseconds=250)])
async def test_fractions_of_a_ttl_count(store: Store, clock: ManualClock, ttl: float) -> None:
    await _taken(store, ttl=ttl)
    clock.advance(0.2)
    assert not await _is_free(store)
    clock.advance(0.05)
    assert await _is_free(store)


async def test_an_owner_that_asks_again_is_granted_the_same_hold_with_its_deadline_not_refreshed(
    store: Store, clock: ManualClock
) -> None:
    lock = await _taken(store, ttl=10)
    clock.advance(9)
    again = await _taken(store, ttl=100)
    assert again.token == lock.token
    clock.advance(1)
    assert not await again.renew(10)
    assert await _is_free(store)


async def test_either_handle_of_one_hold_renews_and_releases_it(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store)
    again = await _taken(store)
    clock.advance(9)
    assert await again.renew(10)
    clock.advance(9)
    assert await lock.renew(10)
    assert await lock.release() is True
    assert await again.release() is False
    assert await again.renew(10) is False


async def test_an_owner_that_asks_after_a_lapse_has_a_new_hold(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store)
    clock.advance(10)
    again = await _taken(store)
    assert again.token > lock.token
    assert await lock.renew(10) is False
    assert await lock.release() is False
    assert await again.renew(10) is True


async def test_tokens_grow_with_each_new_hold_after_release_and_after_lapse(store: Store, clock: ManualClock) -> None:
    tokens = []
    for turn in range(6):
        lock = await _taken(store, owner=f"owner {turn % 2}")
        tokens.append(lock.token)
        if turn % 3:
            assert await lock.release()
        else:
            clock.advance(10)
    assert tokens == sorted(set(tokens))


async def test_a_renewal_sets_a_full_window_from_now(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=10)
    clock.advance(6)
    assert await lock.renew(10) is True
    clock.advance(9)
    assert not await _is_free(store)
    clock.advance(1)
    assert await _is_free(store)


async def test_a_renewal_may_shorten_the_hold(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=100)
    assert await lock.renew(1)
    clock.advance(1)
    assert await _is_free(store)


@pytest.mark.parametrize("late", [0, 0.001, 3_600])
async def test_a_renewal_at_or_past_expiry_is_false_though_nobody_took_the_lock(
    store: Store, clock: ManualClock, late: float
) -> None:
    lock = await _taken(store, ttl=10)
    clock.advance(10 + late)
    assert await lock.renew(10) is False
    assert await _is_free(store)


async def test_a_release_past_expiry_is_true_while_nobody_took_the_lock(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=10)
    clock.advance(3_600)
    assert await lock.release() is True
    assert await lock.release() is False


async def test_a_release_after_another_took_the_lock_is_false_and_leaves_it(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=10)
    clock.advance(10)
    other = await _taken(store, owner="b")
    assert await lock.release() is False
    assert await other.renew(10) is True


@pytest.mark.parametrize("ttl", [0, -1, 0.0, -0.5, timedelta(0), timedelta(seconds=-1), float("nan"), float("inf")])
async def test_a_ttl_that_is_not_above_zero_and_finite_is_refused_everywhere(
    store: Store, clock: ManualClock, ttl: float
) -> None:
    lock = await _taken(store, name="held", ttl=10)
    with pytest.raises(ValueError, match="ttl"):
        await store.try_lock("lock", "a", ttl)
    with pytest.raises(ValueError, match="ttl"):
        store.hold_lock("lock", ttl)
    with pytest.raises(ValueError, match="ttl"):
        await lock.renew(ttl)
    assert await _is_free(store)
    clock.advance(9)
    assert not await _is_free(store, "held")


@pytest.mark.parametrize("ttl", [True, "10", None, b"1"])
async def test_a_ttl_that_is_no_number_is_a_type_error_everywhere(store: Store, ttl: Any) -> None:
    lock = await _taken(store, name="held")
    with pytest.raises(TypeError):
        await store.try_lock("lock", "a", ttl)
    with pytest.raises(TypeError):
        store.hold_lock("lock", ttl)
    with pytest.raises(TypeError):
        await lock.renew(ttl)
    assert await _is_free(store)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", InvalidName),
        (" ", InvalidName),
        ("__alkstore_scheduler", ReservedName),
        ("a\0", InvalidName),
        (1, TypeError),
    ],
)
async def test_a_name_that_no_lock_can_have_is_refused(store: Store, name: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await store.try_lock(name, "a", 1)
    with pytest.raises(error):
        store.hold_lock(name, 1)


@pytest.mark.parametrize(
    ("owner", "error"), [("", InvalidName), ("\n", InvalidName), ("\ud800", InvalidName), (1, TypeError)]
)
async def test_an_owner_that_is_no_name_is_refused(store: Store, owner: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await store.try_lock("lock", owner, 1)
    with pytest.raises(error):
        store.hold_lock("lock", 1, owner=owner)
    assert await _is_free(store)


async def test_an_owner_may_have_a_name_that_is_reserved_among_shared_ones(store: Store) -> None:
    assert await store.try_lock("lock", "__alkstore_scheduler", 1) is not None


async def test_a_ttl_beyond_a_float_saturates(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=10**400)
    clock.advance(10**9)
    assert not await _is_free(store)
    assert await lock.renew(1.7e308)


async def test_a_handle_releases_on_the_way_out_of_its_block(store: Store) -> None:
    async with await _taken(store) as lock:
        assert not await _is_free(store)
    assert await lock.release() is False
    assert await _is_free(store)


async def test_a_handle_releases_when_its_block_raises_and_passes_the_error(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with await _taken(store):
            raise ZeroDivisionError
    assert await _is_free(store)


async def test_a_handle_releases_when_its_block_runs_to_its_end_though_cancelled(store: Store) -> None:
    with anyio.CancelScope() as scope:
        async with await _taken(store):
            scope.cancel()
    assert await _is_free(store)


async def test_a_handle_releases_when_its_block_is_cancelled(store: Store) -> None:
    with anyio.CancelScope() as scope:
        async with await _taken(store):
            scope.cancel()
            await rest(store)
    assert scope.cancelled_caught
    assert await _is_free(store)


async def test_a_handle_whose_hold_is_over_leaves_its_block_in_peace(store: Store, clock: ManualClock) -> None:
    async with await _taken(store, ttl=1):
        clock.advance(1)
        other = await _taken(store, owner="b")
    assert await other.renew(1)


async def test_every_verb_of_a_lock_is_closed_on_a_closed_store(store: Store) -> None:
    lock = await _taken(store)
    held = store.hold_lock("lock", 10)
    await store.aclose()
    with pytest.raises(ValueError, match="ttl"):
        await lock.renew(0)
    with pytest.raises(Closed):
        await lock.renew(1)
    with pytest.raises(Closed):
        await lock.release()
    with pytest.raises(Closed):
        await store.try_lock("lock", "a", 1)
    with pytest.raises(Closed):
        async with held:
            pytest.fail("entered")


# hold_lock


async def test_a_held_lock_is_renewed_for_as_long_as_its_block_runs_and_then_released(
    store: Store, clock: ManualClock
) -> None:
    async with store.hold_lock("lock", 10, owner="a") as lock:
        assert (lock.name, lock.owner) == ("lock", "a")
        for _ in range(10):
            await passing(store, clock, 6)
            assert await store.try_lock("lock", "b", 1) is None
    assert await _is_free(store)


async def test_each_hold_without_an_owner_has_one_of_its_own(store: Store) -> None:
    async with store.hold_lock("lock", 10) as lock:
        assert lock.owner.strip()
        with pytest.raises(LockHeld):
            async with store.hold_lock("lock", 10, wait=False):
                pytest.fail("entered")
        async with store.hold_lock("other", 10, wait=False) as other:
            assert other.owner != lock.owner


async def test_making_a_hold_takes_nothing_until_it_is_entered(store: Store) -> None:
    holding = store.hold_lock("lock", 10)
    assert await _is_free(store)
    async with holding:
        assert not await _is_free(store)


async def test_a_hold_that_does_not_wait_is_refused_at_once(store: Store) -> None:
    lock = await _taken(store)
    with pytest.raises(LockHeld):
        async with store.hold_lock("lock", 10, wait=False):
            pytest.fail("entered")
    assert await lock.renew(10)


async def test_a_waiter_takes_over_within_two_seconds_of_a_release(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=3_600)
    entered = anyio.Event()

    async def wait() -> None:
        async with store.hold_lock("lock", 10) as held:
            assert held.token > lock.token
            entered.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await passing(store, clock, 30)
        assert not entered.is_set()
        await lock.release()
        await passing(store, clock, _SLICE)
        assert entered.is_set()


async def test_a_waiter_takes_over_within_the_ttl_and_two_seconds_of_a_crash(store: Store, clock: ManualClock) -> None:
    await _taken(store, ttl=10)
    entered: list[float] = []
    start = clock()

    async def wait() -> None:
        async with store.hold_lock("lock", 10):
            entered.append(clock() - start)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await passing(store, clock, 10 + _SLICE)
        assert len(entered) == 1
        assert entered[0] >= 10


async def test_many_waiters_hold_one_after_the_other(store: Store, clock: ManualClock) -> None:
    inside = 0
    tokens: list[int] = []

    async def work() -> None:
        nonlocal inside
        async with store.hold_lock("lock", 10) as lock:
            inside += 1
            assert inside == 1
            tokens.append(lock.token)
            for _ in range(5):
                await store.queues()
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(work)
        await passing(store, clock, 5 * _SLICE)
        assert len(tokens) == 4
    assert tokens == sorted(set(tokens))


async def test_a_waiter_that_is_cancelled_has_taken_nothing(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=3_600)

    async def wait(scope: anyio.CancelScope) -> None:
        with scope:
            async with store.hold_lock("lock", 10):
                pytest.fail("entered")

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, scope)
        await passing(store, clock, 3)
        scope.cancel()
    assert scope.cancelled_caught
    await lock.release()
    assert await _is_free(store)


@pytest.mark.parametrize("how", ["lapsed", "taken over", "released"])
async def test_a_hold_that_is_lost_cancels_its_body_and_raises_lock_lost(
    store: Store, clock: ManualClock, how: str
) -> None:
    cancelled = anyio.Event()

    async def lose() -> None:
        await rest(store)
        if how == "released":
            assert await (await _taken(store, owner="holder")).release()
            await passing(store, clock, 10)
        else:
            clock.advance(10)
            if how == "taken over":
                await store.try_lock("lock", "other", 3_600)

    async def hold() -> None:
        async with store.hold_lock("lock", 10, owner="holder"):
            tasks.start_soon(lose)
            try:
                await to_be_cancelled()
            finally:
                cancelled.set()

    async with anyio.create_task_group() as tasks:
        with pytest.raises(LockLost):
            await hold()
        assert cancelled.is_set()
    assert await _is_free(store) == (how != "taken over")


async def test_a_body_that_swallows_its_cancellation_still_ends_in_lock_lost(store: Store, clock: ManualClock) -> None:
    async def hold() -> None:
        async with store.hold_lock("lock", 10):
            await rest(store)
            with anyio.CancelScope(shield=True):
                clock.advance(10)
                await rest(store)

    with pytest.raises(LockLost):
        await hold()


async def test_an_error_of_the_body_wins_over_a_lost_hold(store: Store, clock: ManualClock) -> None:
    async def hold() -> None:
        async with store.hold_lock("lock", 10):
            await rest(store)
            with anyio.CancelScope(shield=True):
                clock.advance(10)
                await rest(store)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await hold()


async def test_an_error_of_the_body_leaves_ungrouped_and_releases(store: Store) -> None:
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as raised:
        async with store.hold_lock("lock", 10):
            raise error
    assert raised.value is error
    assert await _is_free(store)


async def test_a_group_that_the_body_raises_leaves_as_it_is(store: Store) -> None:
    group = ExceptionGroup("mine", [ZeroDivisionError(), KeyError("k")])
    with pytest.raises(ExceptionGroup) as raised:
        async with store.hold_lock("lock", 10):
            raise group
    assert raised.value is group


async def test_cancelling_a_hold_releases_it_and_is_no_lock_lost(store: Store) -> None:
    with anyio.CancelScope() as scope:
        async with store.hold_lock("lock", 10):
            scope.cancel()
            await to_be_cancelled()
    assert scope.cancelled_caught
    assert await _is_free(store)


async def test_a_store_that_closes_under_a_hold_cancels_its_body_with_closed(store: Store) -> None:
    async def hold() -> None:
        async with store.hold_lock("lock", 10):
            await rest(store)
            await store.aclose()
            await to_be_cancelled()

    with pytest.raises(Closed):
        await hold()


async def test_a_store_that_closes_under_a_waiter_is_closed(store: Store) -> None:
    await _taken(store)

    async def close() -> None:
        await rest(store)
        await store.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        with pytest.raises(Closed):
            async with store.hold_lock("lock", 10):
                pytest.fail("entered")


async def test_a_hold_that_its_owner_was_merely_granted_again_is_renewed_at_once_and_released_on_leaving(
    store: Store, clock: ManualClock
) -> None:
    lock = await _taken(store, ttl=5)
    clock.advance(4)
    async with store.hold_lock("lock", 100, owner="a") as held:
        assert held.token == lock.token
        clock.advance(20)  # past the first deadline, short of any renewal of a window of 100
        assert await store.try_lock("lock", "b", 1) is None
    assert await lock.release() is False
    assert await _is_free(store)


async def test_two_blocks_of_one_owner_share_one_hold_and_the_first_to_leave_ends_it(
    store: Store, clock: ManualClock
) -> None:
    async def hold() -> None:
        async with store.hold_lock("lock", 10, owner="a") as outer:
            async with store.hold_lock("lock", 10, owner="a") as inner:
                assert inner.token == outer.token
            assert await _is_free(store)
            await passing(store, clock, 10)

    with pytest.raises(LockLost):
        await hold()


async def test_a_sleeping_hold_renews_in_time_and_never_spins(store: Store, clock: ManualClock) -> None:
    asked: list[type[Op[Any]]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(type(op))

    async with watched(store, note).hold_lock("lock", 30):
        await passing(store, clock, 60)
        assert 3 <= asked.count(Renew) <= 10
        assert len(asked) <= 2 * 60 / _SLICE + 20


async def test_a_waiter_does_not_spin(store: Store, clock: ManualClock) -> None:
    lock = await _taken(store, ttl=3_600)
    asked: list[type[Op[Any]]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(type(op))

    async def wait() -> None:
        async with watched(store, note).hold_lock("lock", 10):
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await passing(store, clock, 60)
        assert 60 / _SLICE <= asked.count(TryLock) <= 60 / _SLICE + 10
        await lock.release()
        await passing(store, clock, _SLICE)


@pytest.mark.parametrize("failure", PASSING)
async def test_a_waiter_and_a_hold_ride_out_a_store_that_is_away_for_a_while(
    store: Store, clock: ManualClock, failure: Failure
) -> None:
    failing = Failing((TryLock, Renew), 4, failure)
    again = Failing(Renew, 4, failure)
    entered = anyio.Event()

    async def before(op: Op[Any]) -> None:
        await failing(op)
        if entered.is_set():
            await again(op)

    async def hold() -> None:
        async with watched(store, before).hold_lock("lock", 10):
            entered.set()
            await passing(store, clock, 20)
            assert not await _is_free(store)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        while not entered.is_set():
            await passing(store, clock, 0.5)
    assert failing.times == again.times == 0


async def test_a_failure_of_the_store_that_does_not_pass_ends_the_hold_as_itself(
    store: Store, clock: ManualClock
) -> None:
    failing = Failing(Renew, 0)

    async def hold() -> None:
        async with watched(store, failing).hold_lock("lock", 10):
            failing.times = 1
            await passing(store, clock, 10)

    with pytest.raises(DatabaseError, match="away"):
        await hold()
    assert await _is_free(store)


async def test_a_release_that_fails_does_not_hide_the_bodys_error(store: Store) -> None:
    failing = Failing(Unlock, 2)
    with pytest.raises(ZeroDivisionError):
        async with watched(store, failing).hold_lock("lock", 10):
            raise ZeroDivisionError
    assert failing.times < 2


async def test_a_release_that_fails_is_the_error_of_a_body_that_had_none(store: Store) -> None:
    with pytest.raises(DatabaseError, match="away"):
        async with watched(store, Failing(Unlock, 2)).hold_lock("lock", 10):
            pass


# In a transaction of the task's own, which may hold what the release waits for


async def _entered(store: Store, how: str) -> AbstractAsyncContextManager[LockHandle]:
    return await _taken(store) if how == "try_lock" else store.hold_lock("lock", 10)


@pytest.mark.parametrize("how", ["try_lock", "hold_lock"])
async def test_an_error_of_the_body_wins_over_a_release_that_would_wait_for_its_own_task(
    store: Store, how: str
) -> None:
    error = ZeroDivisionError()

    async def fail() -> None:
        async with store.transaction() as tx, await _entered(store, how):
            await tx.publish_tx("s", 1)
            raise error

    with pytest.raises(ZeroDivisionError) as raised:
        await fail()
    assert raised.value is error
    assert await store.stream("s").read_since(0, 10) == []


@pytest.mark.parametrize("how", ["try_lock", "hold_lock"])
async def test_a_cancellation_passes_a_release_that_would_wait_for_its_own_task(store: Store, how: str) -> None:
    with anyio.CancelScope() as scope:
        async with store.transaction() as tx, await _entered(store, how):
            await tx.publish_tx("s", 1)
            scope.cancel()
            await to_be_cancelled()
    assert scope.cancelled_caught
    assert await store.stream("s").read_since(0, 10) == []


@pytest.mark.parametrize("how", ["try_lock", "hold_lock"])
async def test_a_release_that_would_wait_for_its_own_task_is_the_error_of_a_body_that_had_none(
    store: Store, traits: Traits, how: str
) -> None:
    with pytest.raises(RuntimeError) if traits.serializes_writers else nullcontext():
        async with store.transaction() as tx, await _entered(store, how):
            await tx.publish_tx("s", 1)
    kept = [] if traits.serializes_writers else [1]
    assert [event.payload for event in await store.stream("s").read_since(0, 10)] == kept


async def test_there_is_no_lock_in_a_transaction(store: Store) -> None:
    async with store.begin_tx() as tx:
        assert not [verb for verb in dir(tx) if "lock" in verb]
