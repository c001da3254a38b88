"""The seam: what a transaction stages, who sees it when, and every way in which it ends.

Whoever writes beside an open transaction does so from another task: an engine may have the one wait for the other.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ..._engine import Traits
from ..._errors import CodecError, CommitUnknown, DatabaseError, InvalidName, PayloadTooLarge, ReservedName
from ..._receivers import WakeReceiver
from ..._rules.names import backing_queue, queue_wake, stream_wake
from ..._store import Store
from ..._tx import Tx, _Life
from ..._values import JobState, Wake
from .._clocks import ManualClock

T = TypeVar("T")

_Body = Callable[[Tx], Coroutine[Any, Any, None]]
SeamForm = Callable[[Store, _Body], Coroutine[Any, Any, None]]


async def seam_elsewhere(verb: Callable[[], Awaitable[T]]) -> T:
    """The result of a verb in a task of its own."""
    results: list[T] = []

    async def task() -> None:
        results.append(await verb())

    async with anyio.create_task_group() as group:
        group.start_soon(task)
    return results[0]


# The three forms, and the ways of leaving one without its effects


async def _in_begin_tx(store: Store, body: _Body) -> None:
    async with store.begin_tx() as tx:
        await body(tx)


async def _in_transaction(store: Store, body: _Body) -> None:
    async with store.transaction() as tx:
        await body(tx)


async def _in_with_tx(store: Store, body: _Body) -> None:
    await store.with_tx(body)


SEAM_FORMS: dict[str, SeamForm] = {"begin_tx": _in_begin_tx, "transaction": _in_transaction, "with_tx": _in_with_tx}

_each_form = pytest.mark.parametrize("form", SEAM_FORMS.values(), ids=SEAM_FORMS)


class _Lost(Exception):
    pass


class _LostBase(BaseException):
    pass


async def _discard_by_rollback(form: SeamForm, store: Store, stage: _Body) -> None:
    async def body(tx: Tx) -> None:
        await stage(tx)
        await tx.rollback()

    await form(store, body)


async def _discard_by_error(error: BaseException, form: SeamForm, store: Store, stage: _Body) -> None:
    async def body(tx: Tx) -> None:
        await stage(tx)
        raise error

    with pytest.raises(type(error)) as caught:
        await form(store, body)
    assert caught.value is error


async def _discard_by_cancellation(form: SeamForm, store: Store, stage: _Body) -> None:
    with anyio.CancelScope() as scope:

        async def body(tx: Tx) -> None:
            await stage(tx)
            scope.cancel()
            await checkpoint()

        await form(store, body)
    assert scope.cancelled_caught


async def _discard_block(store: Store, stage: _Body) -> list[object]:
    """A transaction of a block that is never left, in the list that holds it alive."""
    held: list[object] = [block := store.begin_tx()]
    await stage(await block.__aenter__())
    return held


async def _discard_unit(store: Store, stage: _Body) -> list[object]:
    """An open transaction that no block answers for."""
    held: list[object] = [tx := Tx(_Life(await store._engine.begin()))]
    await stage(tx)
    return held


async def _discard_as_garbage(
    hold: Callable[[Store, _Body], Awaitable[list[object]]], in_thread: bool, store: Store, stage: _Body
) -> None:
    held = await hold(store, stage)
    if in_thread:
        await anyio.to_thread.run_sync(held.clear)
    else:
        held.clear()


def _discards() -> Iterator[tuple[str, SeamForm]]:
    yield "leaving begin_tx", _in_begin_tx
    for name, form in SEAM_FORMS.items():
        yield f"rollback in {name}", partial(_discard_by_rollback, form)
        yield f"an error in {name}", partial(_discard_by_error, _Lost(), form)
        yield f"a BaseException in {name}", partial(_discard_by_error, _LostBase(), form)
        yield f"cancellation in {name}", partial(_discard_by_cancellation, form)
    for what, hold in ("a block", _discard_block), ("a transaction", _discard_unit):
        yield f"garbage, {what}", partial(_discard_as_garbage, hold, False)
        yield f"garbage in a thread, {what}", partial(_discard_as_garbage, hold, True)


SEAM_DISCARDS: dict[str, SeamForm] = dict(_discards())


seam_each_discard: pytest.MarkDecorator = pytest.mark.parametrize("discard", SEAM_DISCARDS.values(), ids=SEAM_DISCARDS)

# Wakes


class _Ear:
    """Hears which channels fire, in order."""

    def __init__(self, store: Store, *channels: str) -> None:
        self.heard: list[str] = []
        self.last_heard = anyio.Event()
        self._last = channels[-1]
        for channel in channels:
            store._engine.hub.attach(channel, self)

    def wake(self, channel: str) -> None:
        self.heard.append(channel)
        if channel == self._last:
            self.last_heard.set()

    def close(self) -> None:
        pass


async def _marker(store: Store) -> None:
    """Return once every wake of what was done before has arrived."""
    async with store.listen("marker") as marker:
        await seam_elsewhere(partial(store.notify, "marker"))
        await marker.receive()


async def _arrived(store: Store, wakes: WakeReceiver) -> int:
    """How many wakes have arrived that were not received yet."""
    await _marker(store)
    arrived = 0
    while True:
        try:
            assert wakes.receive_nowait() == Wake("c")
        except anyio.WouldBlock:
            return arrived
        arrived += 1


@pytest.mark.parametrize("notifies", [1, 2])
async def test_a_staged_notify_wakes_nobody_before_the_commit_and_once_after_it(
    store: Store, traits: Traits, notifies: int
) -> None:
    async with store.listen("c") as wakes, store.begin_tx() as tx:
        for _ in range(notifies):
            await tx.notify_tx("c", {"why": "staged"})
        assert await _arrived(store, wakes) == 0
        await tx.commit()
        arrived = await _arrived(store, wakes)
        assert arrived == notifies if traits.counts_wakes else 1 <= arrived <= notifies


async def test_notifies_wake_first_in_stage_order_then_events_then_queues(store: Store, traits: Traits) -> None:
    events, work = stream_wake("s"), queue_wake("q")
    ear = _Ear(store, "a", "b", events, work)
    async with store.begin_tx() as tx:
        await tx.enqueue_tx("q", 1)
        await tx.publish_tx("s", 1)
        for channel in "b", "a", "b":
            await tx.notify_tx(channel)
        assert ear.heard == []
        await tx.commit()
    await ear.last_heard.wait()
    if traits.counts_wakes:
        assert ear.heard == ["b", "a", "b", events, work]
    else:
        assert list(dict.fromkeys(ear.heard)) == ["b", "a", events, work]


async def test_whoever_is_woken_by_a_commit_finds_all_of_it(store: Store) -> None:
    async with store.listen("c") as wakes:

        async def commit() -> None:
            async with store.transaction() as tx:
                await tx.notify_tx("c")
                await tx.enqueue_tx("q", "job")
                await tx.save_offset_tx("s", "consumer", 7)
                await tx.publish_tx("s", "event")

        async with anyio.create_task_group() as group:
            group.start_soon(commit)
            assert await wakes.receive() == Wake("c")
            assert (await store.queue("q").statistics()).pending == 1
            assert await store.stream("s").get_offset("consumer") == 7
            assert [event.payload for event in await store.stream("s").read_since(0, 10)] == ["event"]


async def test_a_job_and_an_event_of_one_transaction_become_visible_together(store: Store) -> None:
    async def event() -> bool:
        return bool(await store.stream("s").read_since(0, 1))

    async def job() -> bool:
        return bool(await store.queue("q").jobs(limit=1))

    async def watch(first: Callable[[], Awaitable[bool]], second: Callable[[], Awaitable[bool]]) -> None:
        while not await first():
            await checkpoint()
        assert await second()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, event, job)
        group.start_soon(watch, job, event)
        async with store.transaction() as tx:
            await tx.enqueue_tx("q", 1)
            await checkpoint()
            await tx.publish_tx("s", 1)
            await checkpoint()


# Ends


async def _stage_everything(tx: Tx) -> None:
    await tx.notify_tx("c")
    await tx.enqueue_tx("q", 1)
    await tx.outbox_enqueue_tx("o", 1)
    await tx.save_offset_tx("s", "consumer", 1)
    await tx.publish_tx("s", 1)
    await tx.publish_with_key_tx("s", "key", 2)


@seam_each_discard
async def test_a_discarded_transaction_leaves_nothing(store: Store, discard: SeamForm) -> None:
    ear = _Ear(store, "c", stream_wake("s"), queue_wake("q"), queue_wake(backing_queue("o")))
    await seam_elsewhere(partial(discard, store, _stage_everything))
    await _marker(store)
    assert ear.heard == []
    assert await store.queues() == []
    assert await store.streams() == []
    assert await store.stream("s").read_since(0, 10) == []
    assert await store.stream("s").get_offset("consumer") == 0


@seam_each_discard
async def test_the_numbers_of_a_discarded_transaction_are_never_those_of_two_effects(
    store: Store, traits: Traits, discard: SeamForm
) -> None:
    numbers: list[tuple[int, int]] = []

    async def stage(tx: Tx) -> None:
        numbers.append((await tx.enqueue_tx("q", "lost"), await tx.publish_tx("s", "lost")))

    before = await store.queue("q").enqueue("before"), await store.stream("s").publish("before")
    await seam_elsewhere(partial(discard, store, stage))
    after = await store.queue("q").enqueue("after"), await store.stream("s").publish("after")
    [lost] = numbers
    for first, gone, last in zip(before, lost, after, strict=True):
        assert first < gone
        assert gone < last if traits.discarded_ids_are_gaps else first < last
    assert [job.payload for job in await store.queue("q").jobs()] == ["before", "after"]
    async with store.stream("s").subscribe("reader") as events:  # garbage is cleared away in a later turn of the loop
        assert [(await events.receive()).payload for _ in range(2)] == ["before", "after"]


async def _committed(store: Store) -> bool:
    """Whether all of `_stage_everything` stands; an assertion that it is all or nothing."""
    stands = {
        await store.queues() == [backing_queue("o"), "q"],
        await store.streams() == ["s"],
        len(await store.stream("s").read_since(0, 10)) == 2,
        await store.stream("s").get_offset("consumer") == 1,
    }
    assert len(stands) == 1
    return stands.pop()


@_each_form
@pytest.mark.parametrize("error", [None, _Lost(), _LostBase()], ids=["leaving", "an error", "a BaseException"])
async def test_an_explicit_commit_is_respected_whatever_follows(
    store: Store, form: SeamForm, error: BaseException | None
) -> None:
    async def body(tx: Tx) -> None:
        await _stage_everything(tx)
        await tx.commit()
        if error is not None:
            raise error

    if error is None:
        await form(store, body)
    else:
        with pytest.raises(type(error)) as caught:
            await form(store, body)
        assert caught.value is error
    assert await _committed(store)


@pytest.mark.parametrize("form", [_in_transaction, _in_with_tx], ids=["transaction", "with_tx"])
async def test_leaving_cleanly_commits(store: Store, form: SeamForm) -> None:
    await form(store, _stage_everything)
    assert await _committed(store)


@_each_form
async def test_an_empty_transaction_may_end_in_any_way(store: Store, form: SeamForm) -> None:
    await form(store, Tx.commit)
    await form(store, Tx.rollback)
    assert await store.queues() == []


async def test_a_block_that_is_never_entered_opens_nothing(store: Store) -> None:
    store.begin_tx()
    store.transaction()
    assert await store.stream("s").publish(1) == 1
    assert len(await store.stream("s").read_since(0, 10)) == 1


async def test_a_commit_in_a_cancelled_scope_happens_whole_or_not_at_all(store: Store) -> None:
    ear = _Ear(store, "c", stream_wake("s"), queue_wake("q"))
    with anyio.CancelScope() as scope:
        async with store.transaction() as tx:
            await _stage_everything(tx)
            scope.cancel()
    committed = await _committed(store)
    assert committed is not scope.cancelled_caught
    await _marker(store)
    assert ear.heard == (["c", stream_wake("s"), queue_wake("q")] if committed else [])


async def test_a_commit_that_was_cancelled_may_be_repeated(store: Store) -> None:
    async with store.begin_tx() as tx:
        await _stage_everything(tx)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await tx.commit()
        if scope.cancelled_caught:
            assert not await _committed(store)
            await tx.commit()
    assert await _committed(store)


# with_tx


async def test_with_tx_gives_the_value_of_its_function(store: Store) -> None:
    async def fn(tx: Tx) -> dict[str, int]:
        return {"id": await tx.enqueue_tx("q", 1)}

    value = await store.with_tx(fn)
    assert await store.queue("q").get_job(value["id"]) is not None


async def test_with_tx_takes_whatever_gives_an_awaitable(store: Store) -> None:
    job_id = await store.with_tx(lambda tx: tx.enqueue_tx("q", 1))
    assert await store.queue("q").get_job(job_id) is not None


@pytest.mark.parametrize("group", [ExceptionGroup("its own", [_Lost()]), BaseExceptionGroup("its own", [_LostBase()])])
async def test_with_tx_passes_a_group_of_its_functions_own_unchanged(
    store: Store, group: BaseExceptionGroup[BaseException]
) -> None:
    async def fn(tx: Tx) -> None:
        raise group

    with pytest.raises(BaseExceptionGroup) as caught:
        await store.with_tx(fn)
    assert caught.value is group


async def test_with_tx_refuses_what_is_no_async_function(store: Store) -> None:
    called: list[Tx] = []
    not_async: Any = called.append
    with pytest.raises(TypeError):
        await store.with_tx(not_async)
    with pytest.raises(RuntimeError):
        await called[0].enqueue_tx("q", 1)
    not_callable: Any = 3
    with pytest.raises(TypeError):
        await store.with_tx(not_callable)


@pytest.mark.parametrize(
    ("attempts", "error"),
    [(0, ValueError), (-1, ValueError), (2**63, ValueError), (True, TypeError), (1.0, TypeError), ("1", TypeError)],
)
async def test_with_tx_refuses_attempts_that_are_no_count(store: Store, attempts: Any, error: type[Exception]) -> None:
    ran: list[Tx] = []

    async def fn(tx: Tx) -> None:
        ran.append(tx)

    with pytest.raises(error):
        await store.with_tx(fn, attempts=attempts)
    assert ran == []


class _Failing:
    """A function for `with_tx` that stages a job, then fails as often as it is told."""

    def __init__(self, *errors: Exception, end: _Body | None = None) -> None:
        self.left = list(errors)
        self.ran: list[Tx] = []
        self._end = end

    async def __call__(self, tx: Tx) -> int:
        self.ran.append(tx)
        job_id = await tx.enqueue_tx("q", len(self.ran))
        if self._end is not None:
            await self._end(tx)
        if self.left:
            raise self.left.pop(0)
        return job_id


def _deadlock() -> DatabaseError:
    return DatabaseError("deadlock", retryable=True)


async def test_with_tx_runs_its_function_again_in_a_new_transaction_after_a_retryable_failure(store: Store) -> None:
    fn = _Failing(_deadlock(), _deadlock())
    job_id = await store.with_tx(fn, attempts=3)
    assert len({id(tx) for tx in fn.ran}) == 3
    assert [(job.id, job.payload) for job in await store.queue("q").jobs()] == [(job_id, 3)]


async def test_with_tx_raises_the_failure_of_its_last_attempt(store: Store) -> None:
    errors = [_deadlock(), _deadlock(), _deadlock()]
    fn = _Failing(*errors)
    with pytest.raises(DatabaseError) as caught:
        await store.with_tx(fn, attempts=2)
    assert caught.value is errors[1]
    assert len(fn.ran) == 2
    assert await store.queues() == []


@pytest.mark.parametrize(
    "error",
    [DatabaseError("bad"), DatabaseError("away", transient=True), CommitUnknown("gone"), _Lost()],
    ids=["fatal", "transient", "unknown", "the function's own"],
)
async def test_with_tx_never_repeats_after_any_other_failure(store: Store, error: Exception) -> None:
    fn = _Failing(error)
    with pytest.raises(type(error)) as caught:
        await store.with_tx(fn, attempts=3)
    assert caught.value is error
    assert len(fn.ran) == 1
    assert await store.queues() == []


@pytest.mark.parametrize(("end", "jobs"), [(Tx.commit, 1), (Tx.rollback, 0)], ids=["commit", "rollback"])
async def test_with_tx_never_repeats_a_function_that_ended_its_own_transaction(
    store: Store, end: _Body, jobs: int
) -> None:
    fn = _Failing(_deadlock(), end=end)
    with pytest.raises(DatabaseError):
        await store.with_tx(fn, attempts=3)
    assert len(fn.ran) == 1
    assert len(await store.queue("q").jobs()) == jobs


# Misuse

SEAM_VERBS: dict[str, Callable[[Tx], Awaitable[object]]] = {
    "enqueue_tx": lambda tx: tx.enqueue_tx("q", 1),
    "outbox_enqueue_tx": lambda tx: tx.outbox_enqueue_tx("o", 1),
    "publish_tx": lambda tx: tx.publish_tx("s", 1),
    "publish_with_key_tx": lambda tx: tx.publish_with_key_tx("s", "key", 1),
    "notify_tx": lambda tx: tx.notify_tx("c"),
    "save_offset_tx": lambda tx: tx.save_offset_tx("s", "consumer", 1),
    "get_job_tx": lambda tx: tx.get_job_tx("q", 1),
    "get_offset_tx": lambda tx: tx.get_offset_tx("s", "consumer"),
    "read_since_tx": lambda tx: tx.read_since_tx("s", 0, 1),
    "read_since_tx of nothing": lambda tx: tx.read_since_tx("s", 0, 0),
    "read_from_consumer_tx": lambda tx: tx.read_from_consumer_tx("s", "consumer", 1),
    "read_from_consumer_tx of nothing": lambda tx: tx.read_from_consumer_tx("s", "consumer", 0),
    "execute": lambda tx: tx.execute("select 1"),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
}

_each_verb = pytest.mark.parametrize("verb", SEAM_VERBS.values(), ids=SEAM_VERBS)


async def _nothing(tx: Tx) -> None:
    pass


@_each_verb
@_each_form
@pytest.mark.parametrize("end", [Tx.commit, Tx.rollback, _nothing], ids=["commit", "rollback", "leaving"])
async def test_a_verb_after_the_end_is_misuse(
    store: Store, form: SeamForm, end: _Body, verb: Callable[[Tx], Awaitable[object]]
) -> None:
    ended: list[Tx] = []

    async def body(tx: Tx) -> None:
        ended.append(tx)
        await end(tx)
        if end is not _nothing:
            with pytest.raises(RuntimeError):
                await verb(tx)

    await form(store, body)
    with pytest.raises(RuntimeError):
        await verb(ended[0])
    assert await store.queues() == []
    assert await store.streams() == []


@_each_verb
async def test_a_verb_while_another_task_is_inside_one_is_refused(
    store: Store, verb: Callable[[Tx], Awaitable[object]]
) -> None:
    inside, enough = anyio.Event(), anyio.Event()
    async with store.begin_tx() as tx:

        async def keep_inside() -> None:
            inside.set()
            while not enough.is_set():  # it lets others run in its verbs only
                await tx.get_offset_tx("s", "consumer")

        async with anyio.create_task_group() as group:
            group.start_soon(keep_inside)
            await inside.wait()
            with pytest.raises(anyio.BusyResourceError):
                await verb(tx)
            enough.set()
        await tx.enqueue_tx("q", "usable")
        await tx.commit()
    assert [job.payload for job in await store.queue("q").jobs()] == ["usable"]


async def test_only_an_engine_with_sql_executes_a_statement(store: Store, traits: Traits) -> None:
    async with store.transaction() as tx:
        if traits.has_sql:
            assert await tx.execute("select 1") == [(1,)]
        else:
            with pytest.raises(RuntimeError):
                await tx.execute("select 1")
        await tx.enqueue_tx("q", "usable")
    assert len(await store.queue("q").jobs()) == 1


async def test_a_statement_is_part_of_its_transaction(store: Store, traits: Traits) -> None:
    if not traits.has_sql:
        return  # see above
    table = f"t{uuid4().hex}"

    async def stage(tx: Tx) -> None:
        assert await tx.execute(f"create table {table}(x int)") == []
        await tx.execute(f"insert into {table} values (7)")
        await tx.enqueue_tx("q", 1)

    async with store.begin_tx() as tx:
        await stage(tx)
        assert await tx.execute(f"select x from {table}") == [(7,)]
    assert await store.queues() == []
    await store.with_tx(stage)  # which would fail if there were such a table
    assert await store.queues() == ["q"]
    async with store.transaction() as tx:
        assert await tx.execute(f"select x from {table}") == [(7,)]
        await tx.execute(f"drop table {table}")


async def test_after_a_statement_has_failed_only_a_rollback_is_accepted(store: Store, traits: Traits) -> None:
    if not traits.has_sql:
        return
    async with store.begin_tx() as tx:
        await tx.enqueue_tx("q", 1)
        with pytest.raises(DatabaseError) as failure:
            await tx.execute("select * from no_such_table")
        assert failure.value.__cause__ is not None
        for name, verb in SEAM_VERBS.items():
            if name != "rollback" and "of nothing" not in name:  # a read of nothing touches nothing
                with pytest.raises(RuntimeError):
                    await verb(tx)
        await tx.rollback()
    assert await store.queues() == []
    assert await store.queue("q").enqueue(2) > 0


@pytest.mark.parametrize(
    "sql",
    [
        "commit",
        "  -- so\n /* hidden */ ; RollBack",
        "--\rcommit",
        "/* a /* b */ c */ commit",
        "/* a /* b */ commit",
        "/*/ */ end",
        ";;commit;",
        "commit and chain",
        "begin",
        "abort",
        "savepoint x",
        "release x",
        "start/**/transaction",
        "prepare -- so\n transaction 'x'",
    ],
)
async def test_a_statement_that_would_end_the_transaction_is_refused_and_leaves_it_as_it_was(
    store: Store, traits: Traits, sql: str
) -> None:
    if not traits.has_sql:
        return
    async with store.begin_tx() as tx:
        await tx.enqueue_tx("q", 1)
        with pytest.raises(ValueError, match="ended by its own methods"):
            await tx.execute(sql)
        assert await tx.execute("/* commit */ -- begin\n select 1 /* end */") == [(1,)]
        await tx.enqueue_tx("q", 2)
    assert await store.queue("q").jobs() == []


async def test_two_statements_at_once_are_refused_and_nothing_of_them_stands(store: Store, traits: Traits) -> None:
    if not traits.has_sql:
        return
    async with store.begin_tx() as tx:
        await tx.enqueue_tx("q", 1)
        with pytest.raises(ValueError, match="cannot be run"):
            await tx.execute("select 1; commit")
    assert await store.queue("q").jobs() == []


async def test_what_is_no_connection_cannot_be_joined(store: Store, traits: Traits) -> None:
    with pytest.raises(TypeError if traits.has_sql else RuntimeError):
        store.join(object())  # type: ignore[call-overload]  # which is what is tested


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        (lambda tx: tx.enqueue_tx("", 1), InvalidName),
        (lambda tx: tx.enqueue_tx("__alkstore_outbox:o", 1), ReservedName),
        (lambda tx: tx.enqueue_tx("q", {1, 2}), CodecError),
        (lambda tx: tx.enqueue_tx("q", 1, delay=float("nan")), ValueError),
        (lambda tx: tx.enqueue_tx("q", 1, priority=2**63), ValueError),
        (lambda tx: tx.enqueue_tx("q", 1, max_attempts=0), ValueError),
        (lambda tx: tx.enqueue_tx("q", 1, max_attempts=True), TypeError),
        (lambda tx: tx.outbox_enqueue_tx(" ", 1), InvalidName),
        (lambda tx: tx.publish_tx("s", b"bytes"), CodecError),
        (lambda tx: tx.publish_with_key_tx("s", "", 1), InvalidName),
        (lambda tx: tx.notify_tx("__alkstore_x"), ReservedName),
        (lambda tx: tx.notify_tx("c", float("inf")), CodecError),
        (lambda tx: tx.save_offset_tx("s", "consumer", 2**63), ValueError),
        (lambda tx: tx.save_offset_tx("s", "", 1), InvalidName),
        (lambda tx: tx.get_job_tx("q", 1.0), TypeError),
        (lambda tx: tx.read_since_tx("s", 0.0, 1), TypeError),
        (lambda tx: tx.read_from_consumer_tx("s", "consumer", "1"), TypeError),
    ],
)
async def test_a_refused_argument_leaves_the_transaction_usable_and_spends_no_number(
    store: Store, verb: Callable[[Tx], Awaitable[object]], error: type[Exception]
) -> None:
    ear = _Ear(store, "c", stream_wake("s"), queue_wake("q"))
    before = await store.queue("q").enqueue("before"), await store.stream("s").publish("before")
    async with store.transaction() as tx:
        with pytest.raises(error):
            await verb(tx)
        after = await tx.enqueue_tx("q", "after"), await tx.publish_tx("s", "after")
    assert after == (before[0] + 1, before[1] + 1)
    assert [job.payload for job in await store.queue("q").jobs()] == ["before", "after"]
    assert [event.payload for event in await store.stream("s").read_since(0, 10)] == ["before", "after"]
    assert await store.stream("s").get_offset("consumer") == 0
    await _marker(store)
    assert "c" not in ear.heard


async def test_only_an_engine_with_a_limit_refuses_a_staged_notify_of_2_mib(store: Store, traits: Traits) -> None:
    payload = "x" * 2**21
    async with store.listen("c") as wakes:
        async with store.transaction() as tx:
            if traits.notify_limit is None:
                await tx.notify_tx("c", payload)
            else:
                with pytest.raises(PayloadTooLarge) as caught:
                    await tx.notify_tx("c", payload)
                assert (caught.value.limit, caught.value.size) == (traits.notify_limit, len(payload) + 2)
        assert await _arrived(store, wakes) == (1 if traits.notify_limit is None else 0)


# Stamps


async def test_a_staged_job_has_the_plain_stamps(store: Store) -> None:
    async with store.transaction() as tx:
        plain = await tx.enqueue_tx("q", 1)
        own = await tx.enqueue_tx("q", 1, max_attempts=9)
    for job_id, max_attempts in (plain, 3), (own, 9):
        job = await store.queue("q").get_job(job_id)
        assert job is not None
        assert (job.visibility_timeout, job.max_attempts, job.base_backoff) == (300, max_attempts, 5)
        assert job.dead_retention is None


async def test_a_staged_message_has_the_stamps_of_an_outbox(store: Store) -> None:
    async with store.transaction() as tx:
        plain = await tx.outbox_enqueue_tx("o", 1)
        own = await tx.outbox_enqueue_tx("o", 1, max_attempts=9)
    for job_id, max_attempts in (plain, 5), (own, 9):
        job = await store.outbox("o").get_job(job_id)
        assert job is not None
        assert job.queue == backing_queue("o")
        assert (job.visibility_timeout, job.max_attempts, job.base_backoff) == (60, max_attempts, 5)
        assert job.dead_retention is None


async def test_the_clock_is_read_when_an_effect_is_staged(store: Store, clock: ManualClock) -> None:
    began = clock()
    async with store.transaction() as tx:
        first = await tx.enqueue_tx("q", 1, delay=10, expires=60)
        await tx.publish_tx("s", 1)
        clock.advance(5)
        second = await tx.enqueue_tx("q", 2)
        await tx.publish_tx("s", 2)
        clock.advance(5)
    jobs = [await store.queue("q").get_job(job_id) for job_id in (first, second)]
    assert [job and (job.created_at, job.run_at, job.expires_at) for job in jobs] == [
        (began, began + 10, began + 60),
        (began + 5, began + 5, None),
    ]
    assert [event.created_at for event in await store.stream("s").read_since(0, 10)] == [began, began + 5]
    async with store.transaction() as tx:  # that puts in nothing but jobs
        for number in range(2):
            await tx.enqueue_tx("jobs", number)
            clock.advance(5)
    assert [job.created_at for job in await store.queue("jobs").jobs()] == [began + 10, began + 15]


async def test_a_payload_is_encoded_when_it_is_staged(store: Store) -> None:
    payload = {"b": [1], "a": "é"}
    async with store.transaction() as tx:
        job_id = await tx.enqueue_tx("q", payload)
        await tx.publish_tx("s", payload)
        payload["b"] = "changed"
    job = await store.queue("q").get_job(job_id)
    [event] = await store.stream("s").read_since(0, 10)
    assert job is not None
    assert job.body == event.body == '{"b":[1],"a":"é"}'


# Reads


async def test_a_transaction_sees_its_own_jobs_and_nobody_else_does(store: Store, clock: ManualClock) -> None:
    async with store.begin_tx() as tx:
        job_id = await tx.enqueue_tx("q", "mine", priority=4, delay=1)
        message = await tx.outbox_enqueue_tx("o", "mine too")
        job = await tx.get_job_tx("q", job_id)
        assert job is not None
        assert (job.id, job.queue, job.payload, job.priority, job.attempts) == (job_id, "q", "mine", 4, 0)
        assert (job.state, job.run_at, job.worker_id) == (JobState.PENDING, clock() + 1, None)
        assert await tx.get_job_tx("other", job_id) is None
        assert await tx.get_job_tx("q", message) is None
        assert await store.queue("q").get_job(job_id) is None
        assert await store.outbox("o").get_job(message) is None
        assert await store.queues() == []
        async with store.begin_tx() as other:
            assert await other.get_job_tx("q", job_id) is None
        await tx.commit()
    assert await store.queue("q").get_job(job_id) == job


async def test_a_transaction_sees_committed_jobs_as_they_are_at_each_read(store: Store) -> None:
    queue = store.queue("q")
    job_id = await queue.enqueue(1)
    async with store.begin_tx() as tx:

        async def state() -> JobState | None:
            job = await tx.get_job_tx("q", job_id)
            assert job == await queue.get_job(job_id)
            return None if job is None else job.state

        assert await state() is JobState.PENDING
        assert await tx.get_job_tx("other", job_id) is None
        handle = await seam_elsewhere(partial(queue.claim, "w"))
        assert handle is not None
        assert await state() is JobState.PROCESSING
        assert await seam_elsewhere(partial(handle.fail, "dead"))
        assert await state() is JobState.DEAD
        assert await seam_elsewhere(partial(queue.delete, [job_id])) == 1
        assert await state() is None


@pytest.mark.parametrize("job_id", [0, -1, 2**70, -(2**70)])
async def test_an_unknown_job_is_none_in_a_transaction(store: Store, job_id: int) -> None:
    async with store.begin_tx() as tx:
        await tx.enqueue_tx("q", 1)
        assert await tx.get_job_tx("q", job_id) is None


async def test_a_transaction_sees_its_own_events_after_the_committed_ones_and_nobody_else_does(store: Store) -> None:
    stream = store.stream("s")
    first, second = await stream.publish_many(["a", "b"])
    async with store.begin_tx() as tx:
        third = await tx.publish_tx("s", "c")
        await tx.publish_tx("other", "x")
        fourth = await tx.publish_with_key_tx("s", "key", "d")
        assert first < second < third < fourth
        events = await tx.read_since_tx("s", 0, 10)
        assert [(event.offset, event.stream, event.key, event.payload) for event in events] == [
            (first, "s", None, "a"),
            (second, "s", None, "b"),
            (third, "s", None, "c"),
            (fourth, "s", "key", "d"),
        ]
        for after in first, second, third, fourth:
            assert await tx.read_since_tx("s", after, 10) == [event for event in events if event.offset > after]
        for limit in 1, 2, 3, 4, 5:
            assert await tx.read_since_tx("s", 0, limit) == events[:limit]
        assert await tx.read_since_tx("s", -(2**70), 2**70) == events
        assert await tx.read_since_tx("s", 2**70, 10) == []
        assert [event.payload for event in await stream.read_since(0, 10)] == ["a", "b"]
        assert (await stream.statistics()).last == second
        async with store.begin_tx() as other:
            assert [event.payload for event in await other.read_since_tx("s", 0, 10)] == ["a", "b"]
        await tx.commit()
    assert await stream.read_since(0, 10) == events


@pytest.mark.parametrize("limit", [0, -1, -(2**70)])
async def test_a_read_of_nothing_is_empty_in_a_transaction(store: Store, limit: int) -> None:
    async with store.begin_tx() as tx:
        await tx.publish_tx("s", 1)
        assert await tx.read_since_tx("s", 0, limit) == []
        assert await tx.read_from_consumer_tx("s", "consumer", limit) == []


async def test_a_transaction_reads_from_the_offset_that_it_saved_and_nobody_else_does(store: Store) -> None:
    stream = store.stream("s")
    offsets = await stream.publish_many(["a", "b", "c"])
    assert await stream.save_offset("consumer", offsets[0])
    async with store.begin_tx() as tx:
        assert await tx.get_offset_tx("s", "consumer") == offsets[0]
        assert [event.payload for event in await tx.read_from_consumer_tx("s", "consumer", 10)] == ["b", "c"]
        assert await tx.save_offset_tx("s", "consumer", offsets[1])
        assert await tx.get_offset_tx("s", "consumer") == offsets[1]
        assert [event.payload for event in await tx.read_from_consumer_tx("s", "consumer", 10)] == ["c"]
        assert await tx.get_offset_tx("s", "another") == await tx.get_offset_tx("other", "consumer") == 0
        assert await stream.get_offset("consumer") == offsets[0]
        assert [event.payload for event in await stream.read_from_consumer("consumer", 10)] == ["b", "c"]
        await tx.commit()
    assert await stream.get_offset("consumer") == offsets[1]


async def test_a_staged_offset_never_goes_back(store: Store) -> None:
    assert await store.stream("s").save_offset("consumer", 5)
    async with store.transaction() as tx:
        saves = [(offset, await tx.save_offset_tx("s", "consumer", offset)) for offset in (3, 5, 7, 6, 7, 8)]
        assert saves == [(3, False), (5, False), (7, True), (6, False), (7, False), (8, True)]
        assert await tx.get_offset_tx("s", "consumer") == 8
    assert await store.stream("s").get_offset("consumer") == 8


@pytest.mark.parametrize(("inside", "outside"), [(7, 9), (9, 7)])
async def test_the_merge_of_two_saves_keeps_the_greater(
    store: Store, traits: Traits, inside: int, outside: int
) -> None:
    staged, saved = anyio.Event(), anyio.Event()

    async def save() -> None:
        await staged.wait()
        await store.stream("s").save_offset("consumer", outside)
        saved.set()

    async with anyio.create_task_group() as group:
        group.start_soon(save)
        async with store.transaction() as tx:
            assert await tx.save_offset_tx("s", "consumer", inside)
            staged.set()
            if not traits.serializes_publishers:
                await saved.wait()
                assert await tx.get_offset_tx("s", "consumer") == 9
    assert await store.stream("s").get_offset("consumer") == 9


# Two transactions at once


@pytest.mark.parametrize("end", [Tx.commit, Tx.rollback], ids=["commit", "rollback"])
async def test_two_transactions_merge_in_commit_order_and_their_events_keep_stage_order(
    store: Store, traits: Traits, end: _Body
) -> None:
    staged, over, go = anyio.Event(), anyio.Event(), anyio.Event()
    stream, queue = store.stream("s"), store.queue("q")

    async def older() -> None:
        async with store.begin_tx() as tx:
            await tx.enqueue_tx("q", "older")
            await tx.publish_tx("s", "older")
            staged.set()
            await go.wait()
            assert over.is_set() is not traits.serializes_publishers
            await end(tx)

    async def younger() -> None:
        await staged.wait()
        async with store.transaction() as tx:
            await tx.enqueue_tx("q", "younger")
            await tx.publish_tx("s", "younger")
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(older)
        group.start_soon(younger)
        await staged.wait()
        if not traits.serializes_publishers:
            await over.wait()
            assert [job.payload for job in await queue.jobs()] == ["younger"]
            assert await stream.read_since(0, 10) == []
            assert await stream.statistics() == await store.stream("unknown").statistics()
        go.set()
    kept = ["older", "younger"] if end is Tx.commit else ["younger"]
    assert [event.payload for event in await stream.read_since(0, 10)] == kept
    assert [job.payload for job in await queue.jobs()] == kept


@pytest.mark.parametrize("in_transaction", [False, True], ids=["outside", "second transaction"])
async def test_a_task_never_waits_for_itself(store: Store, traits: Traits, in_transaction: bool) -> None:
    async def publish() -> None:
        if in_transaction:
            await store.with_tx(lambda tx: tx.publish_tx("s", "second"))
        else:
            await store.stream("s").publish("second")

    async with store.transaction() as tx:
        await tx.publish_tx("s", "first")
        if traits.serializes_publishers:
            with pytest.raises(RuntimeError):
                await publish()
        else:
            await publish()
    kept = ["first"] if traits.serializes_publishers else ["first", "second"]
    assert [event.payload for event in await store.stream("s").read_since(0, 10)] == kept
