"""Cancellation: whatever verb is cancelled, wherever it waits, it did nothing or it did all, and the store works on.

Each call of `verbs` is cancelled at its first suspension, then, on another fresh store, at its second, and so on until
it gets through; what the store then shows is what it shows without the call, or after it.
"""

import asyncio  # noqa: TID251 what is tested is also a cancellation that anyio knows nothing of
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ..._errors import Closed
from ..._lock import LockHandle
from ..._outbox import Outbox
from ..._queue import JobHandle, Queue
from ..._receivers import EventReceiver, WakeReceiver
from ..._store import Store
from ..._stream import Stream
from ..._tx import Tx
from .._clocks import ManualClock
from .kit import Case
from .verbs import BLOCKS, VERBS, Arrangement, Call, all_that_is, spoiling, works

_MOST = 200  # suspensions; no verb has nearly as many
_CLOSE = 20  # turns of other tasks after which not every single one is tried

# How it is done


class _Stepped:
    """A coroutine, carried on step by step: at its suspension number ``at`` something is called, and it goes on."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, call: Callable[[], object]) -> None:
        self._coroutine = coroutine
        self._at = at
        self._call = call
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            try:
                trap = step()
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions == self._at:
                self._call()
            try:
                answer = yield trap
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, answer)


async def _in_a_scope(call: Call, at: int) -> tuple[bool, bool]:
    """Cancel a call's scope at a suspension, before the call where that is number 0; did it return, was it reached?"""
    with anyio.CancelScope() as scope:
        if at == 0:
            scope.cancel()
        stepped = _Stepped(call(), at, scope.cancel)
        await stepped
        return True, scope.cancel_called
    return False, True


async def _after_turns(call: Call, at: int) -> tuple[bool, bool]:
    """Cancel a call once other tasks have had so many turns; did it return, was it reached?

    An engine that works in a thread lets them have any number: there the later places lie further and further apart.
    """
    turns = at if at < _CLOSE else _CLOSE * 2 ** (at - _CLOSE)
    returned = False
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:

            async def cancel() -> None:
                for _ in range(turns):
                    await checkpoint()
                scope.cancel()

            group.start_soon(cancel)
            await call()
            returned = True
        group.cancel_scope.cancel()
    return returned, scope.cancel_called


async def _by_its_task(call: Call, at: int) -> tuple[bool, bool]:
    """Cancel a call's bare asyncio task at a suspension; did it return, was it reached?"""
    returned = reached = lost = False

    def cancel() -> None:
        nonlocal reached
        reached = True
        task.cancel()

    async def run() -> None:
        nonlocal returned, lost
        await _Stepped(call(), at, cancel)
        returned = True
        await asyncio.sleep(0)
        lost = reached

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    assert not lost, "the cancellation was never delivered"
    if not task.cancelled():
        task.result()
    return returned, reached


async def _by_its_timeout(call: Call, at: int) -> tuple[bool, bool]:
    """Have a call's asyncio timeout expire at a suspension; did it return, was it reached?"""
    returned = False
    timeout = asyncio.timeout(None)
    try:
        async with timeout:
            await _Stepped(call(), at, lambda: timeout.reschedule(0))
            returned = True
    except TimeoutError:
        pass
    await asyncio.sleep(0)  # a cancellation that outlived its timeout would be delivered here
    return returned, timeout.expired()


Way = Callable[[Call, int], Awaitable[tuple[bool, bool]]]


async def _sweep(case: Case, arrangement: Arrangement, way: Way, first: int, all_or_nothing: bool) -> None:
    """Cancel a call in every place that a way finds."""
    seen: list[tuple[Any, ...]] = []
    for called in (False, True):
        async with _opened(case) as (store, clock):
            async with arrangement(store, clock) as call:
                if called:
                    await call()
            seen.append(await all_that_is(store, clock))
    nothing, everything = seen

    for at in range(first, _MOST):
        for again in (False, True) if all_or_nothing else (False,):
            async with _opened(case) as (store, clock):
                with spoiling(store):
                    async with arrangement(store, clock) as call:
                        returned, reached = await way(call, at)
                        if again and not returned:
                            await call()
                            returned = True
                there = await all_that_is(store, clock)
                if not again:
                    await works(store)
            if returned:
                assert there == everything, f"it returned, cancelled at {at}"
            elif all_or_nothing:
                assert there == nothing, f"it was cancelled at {at}"
            else:
                assert there in (nothing, everything), f"it was cancelled at {at}"
            if not reached:
                return
    raise AssertionError(f"a call with {_MOST} suspensions")


@asynccontextmanager
async def _opened(case: Case) -> AsyncIterator[tuple[Store, ManualClock]]:
    clock = ManualClock()
    async with case.open(clock=clock) as store:
        yield store, clock


# The tests


@pytest.fixture
def restless() -> None:
    """To be overridden for an engine that suspends only now and then: have it suspend at every checkpoint."""


_restlessly = pytest.mark.usefixtures("restless")


@pytest.mark.parametrize("name", sorted({*VERBS, *BLOCKS} - {"Tx.rollback"}))  # which never waits
async def test_a_verb_in_a_scope_that_is_cancelled_already_does_not_return(
    case: Case, anyio_backend: str, name: str
) -> None:
    async with _opened(case) as (store, clock), (VERBS | BLOCKS)[name](store, clock) as call:
        returned, _ = await _in_a_scope(call, 0)
        assert not returned


@_restlessly
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_that_is_cancelled_anywhere_did_nothing(case: Case, anyio_backend: str, verb: str) -> None:
    with anyio.fail_after(60):
        await _sweep(case, VERBS[verb], _in_a_scope, 0, all_or_nothing=True)


@_restlessly
@pytest.mark.parametrize("way", [_in_a_scope, _after_turns])
@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_that_is_cancelled_anywhere_did_nothing_or_all(
    case: Case, anyio_backend: str, block: str, way: Way
) -> None:
    with anyio.fail_after(60):
        await _sweep(case, BLOCKS[block], way, 0, all_or_nothing=False)


_on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


@_restlessly
@_on_asyncio
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_whose_bare_task_is_cancelled_anywhere_did_nothing(
    case: Case, anyio_backend: str, verb: str
) -> None:
    with anyio.fail_after(60):
        await _sweep(case, VERBS[verb], _by_its_task, 1, all_or_nothing=True)


@_restlessly
@_on_asyncio
@pytest.mark.parametrize("way", [_by_its_task, _by_its_timeout])
@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_whose_bare_task_is_cancelled_anywhere_did_nothing_or_all(
    case: Case, anyio_backend: str, block: str, way: Way
) -> None:
    with anyio.fail_after(60):
        await _sweep(case, BLOCKS[block], way, 1, all_or_nothing=False)


@_on_asyncio
async def test_a_bare_task_that_does_nothing_but_verbs_is_cancelled(store: Store, anyio_backend: str) -> None:
    queue, running = store.queue("q"), asyncio.Event()

    async def work() -> None:
        while True:
            await queue.enqueue("x")
            await queue.claim("w")
            running.set()

    task = asyncio.create_task(work())
    await running.wait()
    task.cancel()
    with anyio.fail_after(30):
        await asyncio.wait([task])
    assert task.cancelled()


def test_every_asynchronous_verb_is_cancelled() -> None:
    classes = (Store, Queue, JobHandle, Stream, Outbox, LockHandle, Tx, WakeReceiver, EventReceiver)
    verbs = {
        f"{kind.__name__}.{name}"
        for kind in classes
        for name, verb in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if name == "__anext__" or not name.startswith("_")
    }
    shared = {f"Outbox.{name}" for name in ("get_job", "jobs", "statistics", "sweep_expired", "revive", "delete")}
    elsewhere = {"Store.aclose", "Tx.execute", *shared}  # below, on engines that have it, and as those of `Queue`
    assert verbs == ({*VERBS, *BLOCKS} & verbs) | elsewhere


async def test_closing_closes_even_when_it_is_cancelled(store: Store) -> None:
    async with store.listen("c") as wakes, store.stream("s").subscribe("c") as events:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.aclose()
        for receiver in (wakes, events):
            with pytest.raises(Closed):
                await receiver.receive()
    with pytest.raises(Closed):
        await store.notify("c")
