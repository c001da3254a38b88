"""Streams: events in order and none skipped, saved offsets, and subscribers that replay and then follow."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ..._engine import Traits
from ..._errors import Closed, CodecError, DatabaseError, InvalidName
from ..._ops import GetOffset, Op, ReadSince
from ..._receivers import EventReceiver
from ..._store import Store
from ..._stream import Stream
from ..._tx import Tx
from ..._values import StreamEvent, StreamStatistics
from .._clocks import ManualClock
from .kit import Effects
from .seam import SeamForm, seam_each_discard, seam_elsewhere

_EXTREME = 2**70  # beyond 64 bits


def _payloads(events: list[StreamEvent]) -> list[Any]:
    return [event.payload for event in events]


# Publishing and reading


async def test_events_come_in_the_order_of_their_offsets(effects: Effects, clock: ManualClock) -> None:
    offsets, expected = [], []
    for n in range(5):
        offsets.append(await effects.publish("s", {"n": n}))
        expected.append((offsets[-1], "s", None, {"n": n}, f'{{"n":{n}}}', clock()))
        clock.advance(1)
    events = await effects.read_since("s", 0, 100)
    seen = [(event.offset, event.stream, event.key, event.payload, event.body, event.created_at) for event in events]
    assert seen == expected
    assert offsets[0] == 1
    assert offsets == sorted(set(offsets))


async def test_each_stream_counts_for_itself(effects: Effects) -> None:
    assert [await effects.publish(name, 1) for name in ("a", "b", "a", "b")][:2] == [1, 1]
    assert len(await effects.read_since("a", 0, 10)) == len(await effects.read_since("b", 0, 10)) == 2


async def test_a_key_is_carried(effects: Effects) -> None:
    first = await effects.publish_with_key("s", "key of ünïts 100% 'quoted'", [1])
    second = await effects.publish("s", [2])
    third = await effects.publish_with_key("s", " k ", [3])
    events = await effects.read_since("s", 0, 10)
    assert [(event.offset, event.key, event.payload) for event in events] == [
        (first, "key of ünïts 100% 'quoted'", [1]),
        (second, None, [2]),
        (third, " k ", [3]),
    ]


@pytest.mark.parametrize(
    ("key", "error"), [("", InvalidName), (" \t", InvalidName), ("a\0", InvalidName), (None, TypeError), (1, TypeError)]
)
async def test_a_key_that_is_no_name_is_refused(effects: Effects, key: Any, error: type[Exception]) -> None:
    before = await effects.publish("s", 1)
    with pytest.raises(error):
        await effects.publish_with_key("s", key, 1)
    assert await effects.publish("s", 2) == before + 1
    assert _payloads(await effects.read_since("s", 0, 10)) == [1, 2]


async def test_a_published_payload_is_what_it_was_at_the_call(effects: Effects) -> None:
    payload = [1]
    await effects.publish("s", payload)
    await effects.publish_with_key("s", "key", payload)
    payload.append(2)
    assert _payloads(await effects.read_since("s", 0, 10)) == [[1], [1]]


async def test_an_events_payload_is_decoded_once_and_converted_at_will(effects: Effects) -> None:
    await effects.publish("s", {"year": 2024, "month": 2})
    [event] = await effects.read_since("s", 0, 10)
    assert event.payload is event.payload
    assert event.payload_as(sorted) == ["month", "year"]
    with pytest.raises(CodecError) as refusal:
        event.payload_as(lambda value: value["day"])
    assert isinstance(refusal.value.__cause__, KeyError)


async def test_publish_many_gives_the_offsets_in_order(store: Store) -> None:
    stream = store.stream("s")
    first = await stream.publish(0)
    offsets = await stream.publish_many(n for n in range(1, 5))
    assert [event.offset for event in await stream.read_since(0, 10)] == [first, *offsets]
    assert _payloads(await stream.read_since(0, 10)) == [0, 1, 2, 3, 4]
    assert {event.key for event in await stream.read_since(0, 10)} == {None}


async def test_publish_many_takes_any_number(store: Store) -> None:
    stream = store.stream("s")
    published: list[int] = []
    for number in (1, 2, 19, 20, 21, 39, 40, 41, 101, 501):  # an engine may store so many at a time
        payloads = list(range(len(published), len(published) + number))
        offsets = await stream.publish_many(payloads)
        assert offsets == sorted(offsets)
        published += offsets
    events = await stream.read_since(0, 10_000)
    assert [event.offset for event in events] == published
    assert _payloads(events) == list(range(len(published)))


async def test_publish_many_of_nothing_does_nothing(store: Store) -> None:
    stream = store.stream("s")
    assert await stream.publish_many([]) == []
    assert await store.streams() == []
    assert await stream.publish(1) == 1


async def test_publish_many_publishes_all_or_none(store: Store) -> None:
    stream = store.stream("s")
    with pytest.raises(CodecError):
        await stream.publish_many([1, 2, object()])
    assert await store.streams() == []
    assert await stream.publish("first") == 1


async def test_a_read_gives_what_is_greater_than_its_offset_and_no_more_than_its_limit(effects: Effects) -> None:
    offsets = [await effects.publish("s", n) for n in range(6)]
    assert _payloads(await effects.read_since("s", offsets[2], 100)) == [3, 4, 5]
    assert _payloads(await effects.read_since("s", offsets[1], 2)) == [2, 3]
    assert _payloads(await effects.read_since("s", -_EXTREME, _EXTREME)) == [0, 1, 2, 3, 4, 5]
    assert await effects.read_since("s", offsets[-1], 1) == []
    assert await effects.read_since("s", _EXTREME, 1) == []
    assert await effects.read_since("unknown", 0, 1) == []


@pytest.mark.parametrize("limit", [0, -1, -_EXTREME])
async def test_a_read_of_none_is_empty(effects: Effects, limit: int) -> None:
    await effects.publish("s", 1)
    assert await effects.read_since("s", 0, limit) == []
    assert await effects.read_from_consumer("s", "consumer", limit) == []


@pytest.mark.parametrize("number", [1.0, "1", True, None])
async def test_an_offset_or_a_limit_that_is_no_int_is_a_type_error(effects: Effects, number: Any) -> None:
    stream = effects.store.stream("s")
    for verb in (
        partial(effects.read_since, "s", number, 1),
        partial(effects.read_since, "s", 0, number),
        partial(effects.read_from_consumer, "s", "consumer", number),
        partial(effects.save_offset, "s", "consumer", number),
        partial(stream.trim_to, number),
    ):
        with pytest.raises(TypeError):
            await verb()
    assert await effects.store.streams() == []


# Saved offsets


async def test_a_saved_offset_never_goes_back(effects: Effects) -> None:
    assert await effects.get_offset("s", "consumer") == 0
    saves = [(offset, await effects.save_offset("s", "consumer", offset)) for offset in (0, -1, 5, 3, 5, 6, -(2**63))]
    assert saves == [(0, False), (-1, False), (5, True), (3, False), (5, False), (6, True), (-(2**63), False)]
    assert await effects.get_offset("s", "consumer") == 6
    assert await effects.save_offset("s", "consumer", 2**63 - 1)
    assert await effects.get_offset("s", "consumer") == 2**63 - 1


@pytest.mark.parametrize("offset", [2**63, -(2**63) - 1])
async def test_a_saved_offset_must_fit_64_bits(effects: Effects, offset: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        await effects.save_offset("s", "consumer", offset)
    assert await effects.store.streams() == []


async def test_consumers_and_streams_save_apart(effects: Effects) -> None:
    assert await effects.save_offset("a", "one", 3)
    assert await effects.save_offset("a", "two", 1)
    assert await effects.save_offset("b", "one", 2)
    assert [await effects.get_offset(*who) for who in (("a", "one"), ("a", "two"), ("b", "one"), ("b", "two"))] == [
        3,
        1,
        2,
        0,
    ]


async def test_a_consumer_reads_from_its_saved_offset_which_the_read_does_not_move(effects: Effects) -> None:
    offsets = [await effects.publish("s", n) for n in range(4)]
    assert _payloads(await effects.read_from_consumer("s", "consumer", 2)) == [0, 1]
    assert await effects.get_offset("s", "consumer") == 0
    await effects.save_offset("s", "consumer", offsets[1])
    for _ in range(2):
        assert _payloads(await effects.read_from_consumer("s", "consumer", 10)) == [2, 3]
    assert _payloads(await effects.read_from_consumer("s", "another", 10)) == [0, 1, 2, 3]
    assert await effects.get_offset("s", "consumer") == offsets[1]


# Trimming, statistics, names


async def test_a_trim_deletes_up_to_its_horizon_and_that_too(store: Store) -> None:
    stream = store.stream("s")
    offsets = await stream.publish_many(range(5))
    assert await stream.trim_to(offsets[1]) == 2
    assert _payloads(await stream.read_since(0, 10)) == [2, 3, 4]
    assert await stream.trim_to(offsets[1]) == 0
    assert await stream.trim_to(offsets[2]) == 1
    assert _payloads(await stream.read_since(0, 10)) == [3, 4]


@pytest.mark.parametrize(
    ("horizon", "trimmed"), [(-1, 0), (0, 0), (-_EXTREME, 0), (-(2**63), 0), (2**63 - 1, 3), (_EXTREME, 3)]
)
async def test_a_trim_takes_any_horizon(store: Store, horizon: int, trimmed: int) -> None:
    stream = store.stream("s")
    await stream.publish_many(range(3))
    assert await stream.trim_to(horizon) == trimmed
    assert len(await stream.read_since(0, 10)) == 3 - trimmed
    assert await store.stream("unknown").trim_to(horizon) == 0


async def test_offsets_are_never_given_again_after_a_trim_and_saved_ones_stay(store: Store) -> None:
    stream = store.stream("s")
    offsets = await stream.publish_many(range(3))
    await stream.save_offset("consumer", offsets[1])
    await stream.trim_to(_EXTREME)
    assert await stream.get_offset("consumer") == offsets[1]
    assert not await stream.save_offset("consumer", offsets[0])
    later = await stream.publish("later")
    assert later > offsets[-1]
    assert [event.offset for event in await stream.read_from_consumer("consumer", 10)] == [later]


async def test_statistics_give_the_ends_and_the_consumers(store: Store) -> None:
    stream = store.stream("s")
    assert await stream.statistics() == StreamStatistics(None, None, {})
    offsets = await stream.publish_many(range(4))
    await stream.save_offset("one", offsets[1])
    await stream.save_offset("two", 99)
    consumers = {"one": offsets[1], "two": 99}
    assert await stream.statistics() == StreamStatistics(offsets[0], offsets[3], consumers)
    await stream.trim_to(offsets[0])
    assert await stream.statistics() == StreamStatistics(offsets[1], offsets[3], consumers)
    await stream.trim_to(offsets[3])
    assert await stream.statistics() == StreamStatistics(None, None, consumers)


async def test_streams_are_those_with_an_event_or_a_saved_offset(store: Store) -> None:
    assert await store.streams() == []
    await store.stream("b").publish(1)
    await store.stream("a").save_offset("consumer", 1)
    await store.stream("c").publish(1)
    await store.stream("c").save_offset("consumer", 1)
    await store.stream("asked").get_offset("consumer")
    await store.stream("asked").save_offset("consumer", 0)
    await store.stream("asked").read_since(0, 1)
    await store.queue("queue").enqueue(1)
    assert await store.streams() == ["a", "b", "c"]
    await store.stream("b").trim_to(_EXTREME)
    await store.stream("c").trim_to(_EXTREME)
    assert await store.streams() == ["a", "c"]


# No event is ever skipped


async def _read_outside(stream: Stream, store: Store) -> list[StreamEvent]:
    events = await stream.read_from_consumer("reader", 3)
    if events:
        assert await stream.save_offset("reader", events[-1].offset)
    return events


async def _read_inside(stream: Stream, store: Store) -> list[StreamEvent]:
    async with store.transaction() as tx:
        events = await tx.read_from_consumer_tx(stream.name, "reader", 3)
        if events:
            assert await tx.save_offset_tx(stream.name, "reader", events[-1].offset)
    return events


@pytest.mark.parametrize("read", [_read_outside, _read_inside], ids=["outside", "in a transaction"])
async def test_a_reader_that_saves_what_it_read_misses_nothing_of_concurrent_transactions(
    store: Store, read: Callable[[Stream, Store], Awaitable[list[StreamEvent]]]
) -> None:
    stream = store.stream("s")
    over = anyio.Event()
    seen: list[StreamEvent] = []

    async def follow() -> None:
        while True:
            last = over.is_set()
            events = await read(stream, store)
            seen.extend(events)
            if last and not events:
                return
            await checkpoint()

    async def publish(who: int) -> None:
        for n in range(4):
            async with store.begin_tx() as tx:
                for part in range(3):
                    await tx.publish_tx("s", [who, n, part])
                    for _ in range(1 + (3 * who + n + part) % 4):
                        await checkpoint()
                if (who + n) % 3:
                    await tx.commit()
            await stream.publish([who, n, "alone"])

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        async with anyio.create_task_group() as publishers:
            for who in range(6):
                publishers.start_soon(publish, who)
        over.set()
    staged: list[list[object]] = [
        [who, n, part] for who in range(6) for n in range(4) if (who + n) % 3 for part in range(3)
    ]
    alone: list[list[object]] = [[who, n, "alone"] for who in range(6) for n in range(4)]
    assert sorted(map(str, _payloads(seen))) == sorted(map(str, staged + alone))
    offsets = [event.offset for event in seen]
    assert offsets == sorted(set(offsets))
    assert await stream.read_since(0, 1000) == seen


async def _commit(store: Store, stage: Callable[[Tx], Coroutine[Any, Any, None]]) -> None:
    async with store.transaction() as tx:
        await stage(tx)


@seam_each_discard
async def test_a_discard_wakes_the_subscriber_of_what_it_held_back(
    store: Store, traits: Traits, discard: SeamForm
) -> None:
    await _uncovered(store, traits, discard, ["kept"])


async def test_a_commit_wakes_the_subscriber_of_what_it_held_back(store: Store, traits: Traits) -> None:
    await _uncovered(store, traits, _commit, ["first", "kept"])


async def _uncovered(store: Store, traits: Traits, end: SeamForm, expected: list[str]) -> None:
    """A subscriber gets what is expected once an older transaction ends; until then a younger one's event is hidden."""
    stream = store.stream("s")
    staged, over = anyio.Event(), anyio.Event()

    async def stage(tx: Tx) -> None:
        await tx.publish_tx("s", "first")
        staged.set()
        if not traits.serializes_publishers:
            await over.wait()
            assert await stream.read_since(0, 10) == []
            assert await stream.read_from_consumer("consumer", 10) == []
            assert await stream.statistics() == StreamStatistics(None, None, {})
            assert await stream.trim_to(_EXTREME) == 0
            with pytest.raises(anyio.WouldBlock):
                events.receive_nowait()

    async def younger() -> None:
        await staged.wait()
        await stream.publish("kept")
        over.set()

    async with stream.subscribe("consumer") as events, anyio.create_task_group() as group:
        group.start_soon(end, store, stage)
        group.start_soon(younger)
        assert [(await events.receive()).payload for _ in expected] == expected
    assert _payloads(await stream.read_since(0, 10)) == expected


async def test_a_transaction_sees_its_own_events_but_none_above_those_of_another(store: Store, traits: Traits) -> None:
    if traits.serializes_publishers:
        return  # there is never more than one that has staged an event: see the test of two transactions in `seam`
    stream = store.stream("s")
    async with store.begin_tx() as first, store.begin_tx() as second:
        for n, publish in enumerate((first, second)):
            await publish.publish_tx("s", n)
        await seam_elsewhere(partial(stream.publish, "alone"))
        views = {"first": first.read_since_tx, "second": second.read_since_tx}
        assert {name: _payloads(await read("s", 0, 10)) for name, read in views.items()} == {
            "first": [0],
            "second": [1],
        }
        await second.commit()
        assert await stream.read_since(0, 10) == []
        assert _payloads(await first.read_since_tx("s", 0, 10)) == [0, 1, "alone"]
        assert _payloads(await first.read_since_tx("s", 0, 2)) == [0, 1]
        assert _payloads(await first.read_from_consumer_tx("s", "consumer", 10)) == [0, 1, "alone"]
        await first.rollback()
    assert _payloads(await stream.read_since(0, 10)) == [1, "alone"]


async def test_an_open_transaction_holds_back_its_own_streams_only(store: Store, traits: Traits) -> None:
    if traits.serializes_writers:
        return  # whoever publishes beside it waits, whatever the stream
    async with store.begin_tx() as tx:
        await tx.publish_tx("s", 1)
        await tx.enqueue_tx("q", 1)
        await tx.save_offset_tx("t", "consumer", 1)
        await seam_elsewhere(partial(store.stream("t").publish, "seen"))
        assert _payloads(await store.stream("t").read_since(0, 10)) == ["seen"]


# Subscribing


async def _receive(events: EventReceiver, n: int) -> list[Any]:
    return [(await events.receive()).payload for _ in range(n)]


async def _rest(events: EventReceiver) -> list[Any]:
    """What a closed receiver still hands out; an assertion that it is closed for good then."""
    rest = [event.payload async for event in events]
    for _ in range(2):
        with pytest.raises(Closed):
            await events.receive()
        with pytest.raises(Closed):
            events.receive_nowait()
    assert [event async for event in events] == []
    return rest


@pytest.mark.parametrize("prefetch", [1, 2, 3, 100, 2**63 - 1])
async def test_a_subscriber_replays_and_then_follows(store: Store, prefetch: int) -> None:
    stream = store.stream("s")
    published = await stream.publish_many(range(7))
    async with stream.subscribe("consumer", prefetch=prefetch) as events:
        received = [await events.receive() for _ in range(7)]
        assert received == await stream.read_since(0, 10)
        assert [event.offset for event in received] == published
        for n in range(7, 14):
            await stream.publish(n)
            assert await _receive(events, 1) == [n]
        await stream.publish_many(range(14, 20))
        assert await _receive(events, 6) == [14, 15, 16, 17, 18, 19]


async def test_a_subscriber_starts_at_the_saved_offset(store: Store) -> None:
    stream = store.stream("s")
    offsets = await stream.publish_many(range(4))
    await stream.save_offset("consumer", offsets[1])
    async with stream.subscribe("consumer") as events, stream.subscribe("another") as others:
        assert await _receive(events, 2) == [2, 3]
        assert await _receive(others, 4) == [0, 1, 2, 3]


async def test_a_subscriber_whose_offset_is_ahead_waits_for_what_comes_after_it(store: Store) -> None:
    stream = store.stream("s")
    ahead = await stream.publish(0) + 1
    await stream.save_offset("consumer", ahead)
    async with stream.subscribe("consumer") as events:
        passed = await stream.publish("passed")
        received = await stream.publish("received")
        assert passed >= ahead
        assert (await events.receive()).offset == (received if passed == ahead else passed)


_PUBLISHING: dict[str, Callable[[Store], Awaitable[object]]] = {
    "publish": lambda store: store.stream("s").publish("live"),
    "publish_with_key": lambda store: store.stream("s").publish_with_key("key", "live"),
    "publish_many": lambda store: store.stream("s").publish_many(["live"]),
    "publish_tx": lambda store: store.with_tx(lambda tx: tx.publish_tx("s", "live")),
    "publish_with_key_tx": lambda store: store.with_tx(lambda tx: tx.publish_with_key_tx("s", "key", "live")),
}


@pytest.mark.parametrize("publish", _PUBLISHING.values(), ids=_PUBLISHING)
@pytest.mark.parametrize("turns", range(8))
async def test_no_commit_falls_between_attaching_and_reading(
    store: Store, publish: Callable[[Store], Awaitable[object]], turns: int
) -> None:
    async with store.stream("s").subscribe("consumer") as events:
        for _ in range(turns):
            await checkpoint()
        await publish(store)
        assert await _receive(events, 1) == ["live"]


@pytest.mark.parametrize("read", [GetOffset, ReadSince])
async def test_a_commit_while_the_subscriber_reads_is_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch, read: type[Op[Any]]
) -> None:
    engine = store._engine
    do = engine.do
    reading, published = anyio.Event(), anyio.Event()

    async def slow(op: Op[Any]) -> Any:
        answer = await do(op)
        if isinstance(op, read) and not reading.is_set():
            reading.set()
            await published.wait()
        return answer

    monkeypatch.setattr(engine, "do", slow)
    async with store.stream("s").subscribe("consumer") as events:
        await reading.wait()
        await store.stream("s").publish("meanwhile")
        published.set()
        assert await _receive(events, 1) == ["meanwhile"]


async def test_a_receiver_of_a_closed_store_is_closed_at_once(store: Store) -> None:
    stream = store.stream("s")
    await stream.publish_many([1, 2])
    async with stream.subscribe("c") as events:
        assert (await events.receive()).payload == 1
        await store.aclose()
        assert events.receive_nowait().payload == 2
        for _ in range(2):
            with pytest.raises(Closed):
                events.receive_nowait()
            await checkpoint()


async def test_an_idle_receiver_would_block(store: Store) -> None:
    async with store.stream("s").subscribe("consumer") as events:
        with pytest.raises(anyio.WouldBlock):
            events.receive_nowait()
        await store.stream("other").publish(1)
        await store.stream("s").publish(2)
        assert await _receive(events, 1) == [2]
        with pytest.raises(anyio.WouldBlock):
            events.receive_nowait()


async def test_receive_nowait_gives_what_has_arrived(store: Store) -> None:
    await store.stream("s").publish_many(range(3))
    async with store.stream("s").subscribe("consumer") as events:
        assert await _receive(events, 1) == [0]
        assert [events.receive_nowait().payload for _ in range(2)] == [1, 2]


async def test_nothing_is_saved_that_was_not_asked_for(store: Store, clock: ManualClock) -> None:
    stream = store.stream("s")
    await stream.publish_many(range(3))
    async with stream.subscribe("consumer") as events:
        await _receive(events, 3)
        clock.advance(3600)
    assert await stream.get_offset("consumer") == 0
    assert (await stream.statistics()).consumers == {}
    async with stream.subscribe("consumer") as events:
        assert await _receive(events, 3) == [0, 1, 2]


async def test_a_receiver_saves_for_its_consumer(store: Store) -> None:
    stream = store.stream("s")
    offsets = await stream.publish_many(range(3))
    async with stream.subscribe("consumer") as events:
        event = await events.receive()
        assert await events.save_offset(event.offset)
        assert not await events.save_offset(event.offset)
        assert await stream.get_offset("consumer") == offsets[0]
        assert await _receive(events, 2) == [1, 2]
        for bad, error in ((2**63, ValueError), (1.0, TypeError), (True, TypeError)):
            with pytest.raises(error):
                await events.save_offset(bad)  # type: ignore[arg-type]  # it is the point
    async with stream.subscribe("consumer") as events:
        assert await _receive(events, 2) == [1, 2]


async def test_two_subscribers_of_one_consumer_each_get_every_event(store: Store) -> None:
    stream = store.stream("s")
    await stream.publish_many(range(2))
    async with stream.subscribe("consumer") as one, stream.subscribe("consumer") as two:
        assert await _receive(one, 2) == [0, 1]
        assert await _receive(two, 1) == [0]  # so it has read the saved offset
        await one.save_offset(2)
        await stream.publish_many([2, 3])
        assert await _receive(two, 3) == [1, 2, 3]
        assert await _receive(one, 2) == [2, 3]


@pytest.mark.parametrize("prefetch", [1, 2, 5])
async def test_a_subscriber_that_stops_reading_holds_at_most_its_prefetch(store: Store, prefetch: int) -> None:
    stream = store.stream("s")
    await stream.publish_many(range(50))
    async with stream.subscribe("consumer", prefetch=prefetch) as events:
        assert await _receive(events, 1) == [0]
        for _ in range(20):
            await checkpoint()
        await stream.trim_to(_EXTREME)  # what it does not hold is gone
        await stream.publish("end")
        held = []
        async for event in events:
            if event.payload == "end":
                break
            held.append(event.payload)
        assert held == list(range(1, 1 + len(held)))
        assert len(held) <= prefetch


async def test_a_slow_subscriber_slows_nobody_else(store: Store) -> None:
    stream = store.stream("s")
    async with stream.subscribe("slow", prefetch=1) as slow, stream.subscribe("quick", prefetch=2) as quick:
        for n in range(30):
            await stream.publish(n)
            assert await _receive(quick, 1) == [n]
        assert await _receive(slow, 30) == list(range(30))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"consumer": ""}, InvalidName),
        ({"consumer": 1}, TypeError),
        ({"prefetch": 0}, ValueError),
        ({"prefetch": -1}, ValueError),
        ({"prefetch": 2**63}, ValueError),
        ({"prefetch": True}, TypeError),
        ({"prefetch": 1.0}, TypeError),
    ],
)
async def test_subscribe_checks_its_arguments_when_it_is_called(
    store: Store, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.stream("s").subscribe(**{"consumer": "consumer", **options})


@pytest.mark.parametrize("turns", range(10))
async def test_a_cancelled_receive_loses_no_event(store: Store, turns: int) -> None:
    stream = store.stream("s")
    received: list[Any] = []
    async with stream.subscribe("consumer") as events:
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                while True:
                    received.append((await events.receive()).payload)

            group.start_soon(receive)
            for n in range(3):
                await stream.publish(n)
            for _ in range(turns):
                await checkpoint()
            group.cancel_scope.cancel()
        received += await _receive(events, 3 - len(received))
        assert received == [0, 1, 2]
        with pytest.raises(anyio.WouldBlock):
            events.receive_nowait()


async def test_closing_the_store_drains_a_subscriber_and_then_is_final(store: Store) -> None:
    stream = store.stream("s")
    await stream.publish_many(range(3))
    async with stream.subscribe("consumer") as events:
        assert await _receive(events, 1) == [0]
        await store.aclose()
        assert events.receive_nowait().payload == 1
        assert await _rest(events) == [2]
        with pytest.raises(Closed):
            await events.save_offset(1)


async def test_closing_the_store_ends_a_waiting_subscriber(store: Store) -> None:
    received: list[Any] = []
    async with store.stream("s").subscribe("consumer") as events:

        async def iterate() -> None:
            async for event in events:
                received.append(event.payload)  # noqa: PERF401  # the other task looks at it meanwhile

        async def receive() -> None:
            while True:
                try:
                    received.append((await events.receive()).payload)
                except Closed:
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(iterate)
            group.start_soon(receive)
            await store.stream("s").publish("only")
            while not received:
                await checkpoint()
            await store.aclose()
        assert received == ["only"]
        assert await _rest(events) == []


async def test_leaving_the_block_closes_the_receiver(store: Store) -> None:
    stream = store.stream("s")
    await stream.publish_many(range(3))
    async with stream.subscribe("consumer") as events:
        assert await _receive(events, 1) == [0]
    await stream.publish("unseen")
    assert await _rest(events) == [1, 2]


# A subscriber whose store fails


class _Faults:
    """Fails the next reads of a subscriber, each with an error of the list."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[Exception] = []
        self._do = store._engine.do
        monkeypatch.setattr(store._engine, "do", self.do)

    async def do(self, op: Op[Any]) -> Any:
        if isinstance(op, ReadSince) and self.errors:
            await checkpoint()
            raise self.errors.pop(0)
        return await self._do(op)


async def test_a_re_read_that_failed_for_good_raises_from_the_receiver_and_never_out_of_the_block(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = _Faults(store, monkeypatch)
    error = DatabaseError("the disk is gone")
    async with store.stream("s").subscribe("consumer") as events:
        await store.stream("s").publish(1)
        assert await _receive(events, 1) == [1]
        faults.errors.append(error)
        while faults.errors:  # a read that had begun before still succeeds
            await store.stream("s").publish(2)
        with suppress(DatabaseError):
            while True:
                await events.receive()
        for _ in range(2):
            with pytest.raises(DatabaseError) as caught:
                await events.receive()
            assert caught.value is error
            with pytest.raises(DatabaseError) as caught:
                events.receive_nowait()
            assert caught.value is error
        with pytest.raises(DatabaseError) as caught:
            async for _event in events:
                pass
        assert caught.value is error
    async with store.stream("s").subscribe("consumer") as events:
        assert await _receive(events, 2) == [1, 2]


@pytest.mark.parametrize("kind", ["transient", "retryable"])
async def test_a_re_read_that_failed_for_now_is_repeated(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    faults = _Faults(store, monkeypatch)
    faults.errors = [DatabaseError(f"away {n}", **{kind: True}) for n in range(3)]
    await store.stream("s").publish(1)
    async with store.stream("s").subscribe("consumer") as events, anyio.create_task_group() as group:

        async def let_time_pass() -> None:
            while True:
                clock.advance(1)
                await checkpoint()

        group.start_soon(let_time_pass)
        assert await _receive(events, 1) == [1]
        group.cancel_scope.cancel()
    assert [f"away {n}" in caplog.text for n in range(3)] == [True, True, True]
