"""Names, payloads and texts of every odd kind: each comes back from every verb as it went, or is refused."""

import json
from typing import Any

import anyio
import pytest

from ..._errors import CodecError, Discard
from ..._queue import JobHandle
from ..._rules import names
from ..._store import Store
from ..._values import Job, JobState, Wake
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import tick
from .kit import Effects

_ODD_TEXTS = {
    "quotes": 'it\'s "quoted" `so` \'\'twice\'\' ""twice"" $$dollars$$ $1 $jobs',
    "percents": "100% %s %(name)s %% %d {} {0} {name} ? :name ::text @name",
    "backslashes": "\\ \\\\ \\' \\\" \\n \\u0041 \\x41 \\0 C:\\temp\\",
    "statements": "'; drop table jobs; -- /* */ #",
    "arrays and rows": '{NULL,"a",b} (1,2) [3] null NULL',
    "emoji": "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ed \u2764\ufe0f",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u202e\u0645\u0631\u062d\u0628\u0627\u202c \u200f\u200e",
    "marks that combine": "e\u0301 \u00e9 a\u0300\u0316\u0301 \u0e01\u0e33",
    "controls": "tab\ttab\nline\r\nfeed\x0c bell\x07 esc\x1b[31m del\x7f\x85\u2028\u2029 \ufeff",
    "the ends of planes": "\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff",
    "what looks like JSON": '{"a": [1, "\\u0000"], "b": null}',
}


@pytest.mark.parametrize("kind", _ODD_TEXTS)
async def test_odd_text_comes_back_as_it_went_from_every_verb(store: Store, clock: ManualClock, kind: str) -> None:
    text = _ODD_TEXTS[kind]
    payload = {text: [text, {text: text}]}
    quoted = json.dumps(text, ensure_ascii=False)
    body = f"{{{quoted}:[{quoted},{{{quoted}:{quoted}}}]}}"
    queue, outbox, stream = store.queue(text), store.outbox(text), store.stream(text)

    # Jobs
    ids = [await queue.enqueue(payload), *await queue.enqueue_many([payload, payload])]
    assert [job.body for job in await queue.jobs()] == [body] * 3
    first, second, third = await queue.claim_batch(text, 3)
    assert [handle.job.id for handle in (first, second, third)] == ids
    assert {(handle.job.queue, handle.job.worker_id) for handle in (first, second, third)} == {(text, text)}
    assert first.job.payload == payload
    assert await first.heartbeat()
    assert await first.fail(text)
    assert await second.retry(text, 0)
    assert await third.release()
    dead = await queue.get_job(ids[0])
    assert dead is not None
    assert (dead.last_error, dead.worker_id, dead.payload) == (text, text, payload)
    assert [job.last_error for job in await queue.jobs(JobState.PENDING)] == [text, None]
    assert await queue.revive(ids) == 1
    assert await queue.next_ready_at() == clock()
    again = await queue.claim_batch(text, 2)
    assert await queue.ack_batch(again) == 2
    handle = await queue.claim(text)
    assert handle is not None
    assert await handle.ack()
    stop, ran = StopToken(), []

    async def handler(job: Job) -> None:
        ran.append(job.payload)
        stop.cancel()
        raise Discard(text)

    last = await queue.enqueue(payload)
    await queue.run_worker(handler, worker_id=text, stop=stop)
    buried = await queue.get_job(last)
    assert buried is not None
    assert (ran, buried.last_error, buried.worker_id) == ([payload], text, text)
    assert await queue.delete([last]) == 1

    # Messages
    await outbox.enqueue(payload)

    async def deliver(handle: JobHandle) -> None:
        assert (handle.job.queue, handle.job.payload) == (names.backing_queue(text), payload)
        raise ConnectionError(text)

    assert await outbox.run_once(text, deliver)
    [message] = await outbox.jobs()
    assert message.last_error == f"ConnectionError: {text}"
    assert await outbox.delete([message.id]) == 1

    # Events
    await stream.publish(payload)
    await stream.publish_with_key(text, payload)
    assert await stream.save_offset(text, 1)
    assert [event.key for event in await stream.read_since(0, 9)] == [None, text]
    [event] = await stream.read_from_consumer(text, 9)
    assert (event.stream, event.key, event.body, event.payload) == (text, text, body, payload)
    assert (await stream.statistics()).consumers == {text: 1}
    async with stream.subscribe(text) as events:
        assert await events.receive() == event
        assert await events.save_offset(2)
    assert await stream.get_offset(text) == 2
    assert await store.streams() == [text]
    assert await stream.trim_to(1) == 1

    # Locks and schedules
    async with store.hold_lock(text, 60, owner=text) as lock:
        assert (lock.name, lock.owner) == (text, text)
        assert await store.try_lock(text, "another", 60) is None
        assert await lock.renew(60)
    registered = await store.schedule(text, "@every 1h", text, payload)
    [state] = await store.schedules()
    assert state.schedule == registered
    assert (registered.name, registered.queue) == (text, text)
    clock.advance(3600)
    assert await tick(store) == 1
    fired = await queue.claim(text)
    assert fired is not None
    assert fired.job.payload == payload
    assert await fired.ack()
    assert await store.unschedule(text)

    # A transaction, and wakes
    async with store.listen(text) as wakes, store.begin_tx() as tx:
        job_id = await tx.enqueue_tx(text, payload)
        assert await tx.save_offset_tx(text, text, 3)
        await tx.outbox_enqueue_tx(text, payload)
        await tx.publish_tx(text, payload)
        await tx.publish_with_key_tx(text, text, payload)
        await tx.notify_tx(text, text)
        staged = await tx.get_job_tx(text, job_id)
        assert staged is not None
        assert (staged.queue, staged.payload) == (text, payload)
        assert [event.key for event in await tx.read_since_tx(text, 2, 9)] == [None, text]
        assert [event.body for event in await tx.read_from_consumer_tx(text, text, 9)] == [body]
        assert await tx.get_offset_tx(text, text) == 3
        await tx.commit()
        assert await wakes.receive() == Wake(text)
    assert await store.queues() == sorted([names.backing_queue(text), text])
    assert [event.offset for event in await stream.read_from_consumer(text, 9)] == [4]


async def test_what_no_database_stores_in_an_error_text_is_replaced_and_nothing_else_is(store: Store) -> None:
    queue = store.queue("q", max_attempts=2)
    for text, stored in [
        ("a\0b", "a\ufffdb"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("\ud83d\ude00", "\ufffd\ufffd"),  # halves of a pair are no pair
        ("\x01\x7f\u2028\ufeff\uffff\U0001f600", "\x01\x7f\u2028\ufeff\uffff\U0001f600"),
        ("\U0001f600" * 8_193, "\U0001f600" * 8_192),
        ("", ""),
    ]:
        job_id = await queue.enqueue(0)
        handle = await queue.claim("w")
        assert handle is not None
        assert await handle.retry(text, 0)
        handle = await queue.claim("w")
        assert handle is not None
        assert handle.job.last_error == stored
        assert await handle.fail(text)
        job = await queue.get_job(job_id)
        assert job is not None
        assert (job.last_error == stored) is True  # said first, since the message may be very long


@pytest.mark.parametrize("kind", [list, dict])
async def test_nesting_is_taken_whole_or_refused(
    store: Store, effects: Effects, kind: type[list[Any]] | type[dict[str, Any]]
) -> None:
    for levels in (200, 500, 1_000, 5_000, 100_000):
        payload: Any = kind()
        for _ in range(levels - 1):
            payload = [payload] if kind is list else {"k": payload}
        try:
            job_id = await effects.enqueue("q", payload)
        except CodecError:
            assert levels > 200
            continue
        job = await effects.get_job("q", job_id)
        assert job is not None
        opening, closing = ("[", "]") if kind is list else ('{"k":', "}")
        body = opening * (levels - 1) + opening[0] + closing * levels
        assert (job.body == body) is True  # said first, since the message may be very long


async def test_ten_thousand_names_are_ten_thousand_queues_and_no_two_are_taken_for_one(store: Store) -> None:
    every = [f"{i} \u00e9'%\\" for i in range(10_000)]
    consumers = every[::10]

    async def enqueue(share: list[str]) -> None:
        for name in share:
            await store.queue(name).enqueue(name)

    async with anyio.create_task_group() as tasks:
        for start in range(32):
            tasks.start_soon(enqueue, every[start::32])
    async with store.transaction() as tx:
        for offset, name in enumerate(consumers, 1):
            await tx.save_offset_tx("s", name, offset)
    assert await store.queues() == sorted(every)
    assert (await store.stream("s").statistics()).consumers == {name: i for i, name in enumerate(consumers, 1)}
    for name in every[::1_111]:
        handle = await store.queue(name).claim("w")
        assert handle is not None
        assert handle.job.payload == name
        assert await store.queue(name).claim("w") is None
