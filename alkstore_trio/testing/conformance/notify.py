"""Notify and listen: a wake is a hint, it comes to whoever was attached, and a receiver has an end."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from ..._engine import Traits
from ..._errors import Closed, CodecError, InvalidName, ReservedName
from ..._receivers import WakeReceiver
from ..._rules.names import RECONNECTED
from ..._store import Store
from ..._values import Wake
from ..._wake import WAKE_BUFFER
from .kit import Effects


async def _arrived(store: Store, wakes: WakeReceiver) -> list[Wake]:
    """The wakes that have come and were not received yet: those before one of a marker."""
    async with store.listen("marker") as marker:
        await store.notify("marker")
        await marker.receive()
    arrived = []
    while True:
        try:
            arrived.append(wakes.receive_nowait())
        except anyio.WouldBlock:
            return arrived


async def _assert_closed(wakes: WakeReceiver) -> None:
    """Closed for good, in every form."""
    for _ in range(2):
        with pytest.raises(Closed):
            wakes.receive_nowait()
        with pytest.raises(Closed):
            await wakes.receive()
        assert [wake async for wake in wakes] == []


# Wakes


@pytest.mark.parametrize("channel", ["c", "channel of ünïts", "100% 'quoted' \"x\"", " c ", "c" * 512])
async def test_a_notify_wakes_a_listener_with_its_channel_and_nothing_else(effects: Effects, channel: str) -> None:
    async with effects.store.listen(channel) as wakes:
        await effects.notify(channel, {"payload": [1, 2, 3]})
        wake = await wakes.receive()
        assert wake == Wake(channel)
        assert attrs.asdict(wake) == {"channel": channel}
        assert await _arrived(effects.store, wakes) == []


@pytest.mark.parametrize("notifies", [1, 2, 5])
async def test_each_notify_is_a_wake_where_wakes_are_counted(effects: Effects, traits: Traits, notifies: int) -> None:
    async with effects.store.listen("c") as wakes:
        for _ in range(notifies):
            await effects.notify("c")
        arrived = await _arrived(effects.store, wakes)
        assert set(arrived) == {Wake("c")}
        assert len(arrived) == notifies if traits.counts_wakes else len(arrived) <= notifies


async def test_every_listener_of_a_channel_is_woken_and_nobody_else(effects: Effects) -> None:
    store = effects.store
    async with store.listen("c") as one, store.listen("c") as two, store.listen("C") as other:
        await effects.notify("c")
        assert await one.receive() == await two.receive() == Wake("c")
        assert await _arrived(store, other) == []
        await effects.notify("C")
        assert await other.receive() == Wake("C")
        assert await _arrived(store, one) == await _arrived(store, two) == []


async def test_a_notify_without_a_listener_is_forgotten(effects: Effects) -> None:
    await effects.notify("c")
    async with effects.store.listen("c") as wakes:
        assert await _arrived(effects.store, wakes) == []


async def test_a_listener_is_attached_when_its_block_is_entered(effects: Effects) -> None:
    store = effects.store
    block = store.listen("c")
    await effects.notify("c")
    async with block as wakes:
        assert await _arrived(store, wakes) == []
        await effects.notify("c")
        assert await wakes.receive() == Wake("c")


async def test_a_listener_sees_nothing_of_what_comes_after_its_block(effects: Effects) -> None:
    async with effects.store.listen("c") as wakes:
        pass
    await effects.notify("c")
    await _assert_closed(wakes)


async def test_one_listener_leaving_takes_no_other_with_it(effects: Effects) -> None:
    async with effects.store.listen("c") as stays:
        async with effects.store.listen("c"):
            pass
        await effects.notify("c")
        assert await stays.receive() == Wake("c")


async def test_the_last_notify_is_followed_by_a_wake(store: Store) -> None:
    seen, latest = 0, 0

    async def notify() -> None:
        nonlocal latest
        for n in range(1, 51):
            latest = n
            await store.notify("c")
            if n % 7 == 0:
                await checkpoint()

    async with store.listen("c") as wakes, anyio.create_task_group() as group:
        group.start_soon(notify)
        while seen < 50:
            await wakes.receive()
            seen = latest
    assert seen == 50


async def test_a_refused_notify_wakes_nobody(effects: Effects) -> None:
    async with effects.store.listen("c") as wakes:
        for payload in object(), float("nan"), b"bytes", "\ud800":
            with pytest.raises(CodecError):
                await effects.notify("c", payload)
        with pytest.raises(InvalidName):
            await effects.notify("")
        assert await _arrived(effects.store, wakes) == []


@pytest.mark.parametrize(
    ("channel", "error"),
    [("", InvalidName), (" ", InvalidName), ("__alkstore_stream_wake:s", ReservedName), (1, TypeError)],
)
async def test_listen_checks_its_channel_when_it_is_called(store: Store, channel: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.listen(channel)


# A reader that is behind


async def test_unread_wakes_are_bounded(store: Store, traits: Traits) -> None:
    async with store.listen("c") as slow, store.listen("c") as quick:
        for _ in range(WAKE_BUFFER + 500):
            await store.notify("c")
            await quick.receive()
        arrived = await _arrived(store, slow)
        assert set(arrived) == {Wake("c")}
        assert len(arrived) == WAKE_BUFFER if traits.counts_wakes else len(arrived) <= WAKE_BUFFER
        await store.notify("c")
        assert await slow.receive() == Wake("c")


def test_the_bound_of_unread_wakes_is_4096() -> None:
    assert WAKE_BUFFER == 4_096


async def test_the_wake_after_a_reconnect_is_never_dropped(store: Store, traits: Traits) -> None:
    async with store.listen("c") as wakes, store.listen("d") as other:
        if traits.counts_wakes:
            for _ in range(WAKE_BUFFER):
                await store.notify("c")
        store._engine.hub.reconnected()
        assert await other.receive() == Wake("__alkstore_listener_reconnected__")
        arrived = await _arrived(store, wakes)
        assert arrived[-1] == Wake(RECONNECTED)
        assert arrived[:-1] == [Wake("c")] * (WAKE_BUFFER if traits.counts_wakes else 0)


# Idle and closed


async def test_an_idle_listener_would_block(store: Store) -> None:
    async with store.listen("c") as wakes:
        for _ in range(2):
            with pytest.raises(anyio.WouldBlock):
                wakes.receive_nowait()
        await store.notify("c")
        assert await wakes.receive() == Wake("c")
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()


async def _receive(wakes: WakeReceiver) -> None:
    with pytest.raises(Closed):
        await wakes.receive()


async def _iterate(wakes: WakeReceiver) -> None:
    assert [wake async for wake in wakes] == []


@pytest.mark.parametrize("wait", [_receive, _iterate])
@pytest.mark.parametrize("turns", [0, 5])
async def test_closing_the_store_ends_whoever_waits_for_a_wake(
    store: Store, wait: Callable[[WakeReceiver], Coroutine[Any, Any, None]], turns: int
) -> None:
    async with store.listen("c") as wakes:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait, wakes)
            for _ in range(turns):
                await checkpoint()
            await store.aclose()
        await _assert_closed(wakes)


async def test_closing_hands_out_what_was_buffered_first(store: Store, traits: Traits) -> None:
    async with store.listen("c") as wakes, store.listen("d") as others:
        for _ in range(3):
            await store.notify("c")
            await store.notify("d")
        if not traits.counts_wakes:
            await others.receive()
            await wakes.receive()
            await store.aclose()
        else:
            await store.aclose()
            assert wakes.receive_nowait() == await wakes.receive() == Wake("c")
            assert [wake async for wake in wakes] == [Wake("c")]
            assert [wake async for wake in others] == [Wake("d")] * 3
            await _assert_closed(others)
        assert {wake async for wake in wakes} <= {Wake("c")}
        await _assert_closed(wakes)


async def test_leaving_the_block_closes_the_receiver_for_whoever_still_waits(store: Store) -> None:
    async with anyio.create_task_group() as group, store.listen("c") as wakes:
        group.start_soon(_receive, wakes)
        group.start_soon(_iterate, wakes)
        for _ in range(3):
            await checkpoint()
    await _assert_closed(wakes)


# Cancelling


@pytest.mark.parametrize("turns", range(8))
async def test_a_receive_cancelled_beside_a_notify_loses_no_wake(store: Store, traits: Traits, turns: int) -> None:
    received: list[Wake] = []
    async with store.listen("c") as wakes:

        async def receive() -> None:
            received.append(await wakes.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            for _ in range(3):
                await checkpoint()
            await store.notify("c")
            for _ in range(turns):
                await checkpoint()
            group.cancel_scope.cancel()
        if not received:
            await receive()
        assert received + await _arrived(store, wakes) == [Wake("c")]


@pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel, notify", "notify, cancel"])
async def test_a_receive_cancelled_in_the_turn_of_the_notify_loses_no_wake(store: Store, cancel_first: bool) -> None:
    received: list[Wake] = []
    async with store.listen("c") as wakes:

        async def receive() -> None:
            received.append(await wakes.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            for _ in range(5):
                await checkpoint()
            if cancel_first:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await store.notify("c")
            else:
                await store.notify("c")
                group.cancel_scope.cancel()
        if not received:
            await receive()
        assert received + await _arrived(store, wakes) == [Wake("c")]


async def test_a_cancelled_receive_of_one_task_leaves_the_wake_to_another(store: Store) -> None:
    received: list[Wake] = []
    async with store.listen("c") as wakes, anyio.create_task_group() as patient:
        impatient = anyio.CancelScope()

        async def receive(scope: anyio.CancelScope) -> None:
            with scope:
                received.append(await wakes.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(receive, impatient)
            for _ in range(5):
                await checkpoint()
            patient.start_soon(receive, anyio.CancelScope())
            for _ in range(5):
                await checkpoint()
            await store.notify("c")
            impatient.cancel()
        if impatient.cancelled_caught:
            while not received:
                await checkpoint()
        else:
            await store.notify("c")
    assert set(received) == {Wake("c")}


async def test_a_receive_in_a_cancelled_scope_takes_nothing(store: Store) -> None:
    async with store.listen("c") as wakes, store.listen("c") as other:
        await store.notify("c")
        await other.receive()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await wakes.receive()
        assert scope.cancelled_caught
        assert await _arrived(store, wakes) == [Wake("c")]


async def test_several_tasks_on_one_receiver_share_its_wakes(store: Store, traits: Traits) -> None:
    received: list[int] = []
    async with store.listen("c") as wakes, anyio.create_task_group() as group:

        async def receive(task: int) -> None:
            await wakes.receive()
            received.append(task)

        for task in range(5):
            group.start_soon(receive, task)
        while len(received) < 5:  # one notify for all of them would wake one only
            before = len(received)
            await store.notify("c")
            while len(received) == before:
                await checkpoint()
            if traits.counts_wakes:
                for _ in range(5):
                    await checkpoint()
                assert len(received) == before + 1
    assert sorted(received) == [0, 1, 2, 3, 4]


async def test_a_run_of_wakes_is_not_kept_from_any_of_several_tasks(store: Store, traits: Traits) -> None:
    if not traits.counts_wakes:
        return  # they would be one wake
    received: list[int] = []
    async with store.listen("c") as wakes, anyio.create_task_group() as group:

        async def receive(task: int) -> None:
            await wakes.receive()
            received.append(task)

        for task in range(5):
            group.start_soon(receive, task)
        for _ in range(5):
            await checkpoint()
        for _ in range(5):
            await store.notify("c")
    assert sorted(received) == [0, 1, 2, 3, 4]


# Leaving the block


async def _break_out(store: Store) -> WakeReceiver:
    while True:
        async with store.listen("c") as wakes:
            break
    return wakes


async def _break_out_of_iteration(store: Store) -> WakeReceiver:
    async with store.listen("c") as wakes:
        await store.notify("c")
        async for _ in wakes:
            break
    return wakes


async def _raise_out(store: Store) -> WakeReceiver:
    error = KeyError("its own")
    with pytest.raises(KeyError) as caught:
        async with store.listen("c") as wakes:
            raise error
    assert caught.value is error
    return wakes


async def _cancel_out(store: Store) -> WakeReceiver:
    with anyio.CancelScope() as scope:
        async with store.listen("c") as wakes:
            scope.cancel()
            await wakes.receive()
    assert scope.cancelled_caught
    return wakes


async def _run_out_of_time(store: Store) -> WakeReceiver:
    with anyio.move_on_after(3600) as scope:
        async with store.listen("c") as wakes:
            scope.deadline = anyio.current_time()
            await wakes.receive()
    assert scope.cancelled_caught
    return wakes


@pytest.mark.parametrize("leave", [_break_out, _break_out_of_iteration, _raise_out, _cancel_out, _run_out_of_time])
async def test_a_listener_may_leave_in_any_way(store: Store, leave: Callable[[Store], Awaitable[WakeReceiver]]) -> None:
    async with store.listen("c") as stays:
        left = await leave(store)
        await _arrived(store, stays)
        await store.notify("c")
        assert await stays.receive() == Wake("c")
        await _assert_closed(left)
    assert store._engine.hub.channels == {}
