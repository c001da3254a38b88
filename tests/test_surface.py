"""The surface: its exports, that they are documented and typed without engines, and that errors tell and travel."""

import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
import typing
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any

import anyio
import attrs
import pytest

import alkstore_trio
from alkstore_trio import (
    AlkstoreError,
    Closed,
    CodecError,
    CommitUnknown,
    DatabaseError,
    Discard,
    InvalidName,
    InvalidSpec,
    LeadershipLost,
    LockHeld,
    LockLost,
    PayloadTooLarge,
    ReservedName,
    Snooze,
    Store,
    open_memory,
    testing,
)

PACKAGE = Path(alkstore_trio.__file__).parent

EXPORTS = {
    "AlkstoreError",
    "Closed",
    "CodecError",
    "CommitUnknown",
    "DatabaseError",
    "Discard",
    "EventReceiver",
    "InvalidName",
    "InvalidSpec",
    "Job",
    "JobHandle",
    "JobState",
    "LeadershipLost",
    "LockHandle",
    "LockHeld",
    "LockLost",
    "Outbox",
    "PayloadTooLarge",
    "Queue",
    "QueueStatistics",
    "ReservedName",
    "Schedule",
    "ScheduleOptions",
    "ScheduleState",
    "Snooze",
    "StopToken",
    "Store",
    "Stream",
    "StreamEvent",
    "StreamStatistics",
    "JoinedTx",
    "SyncJoinedTx",
    "Tx",
    "Wake",
    "WakeReceiver",
    "open_memory",
    "open_postgres",
    "open_sqlite",
    "open_store",
}

# The verbs of the contract, each handle's whole vocabulary.
VERBS = {
    "Store": "aclose begin_tx hold_lock join listen notify outbox queue queues run_schedules schedule schedules stream "
    "streams transaction try_lock unschedule with_tx",
    "Queue": "ack_batch claim claim_batch delete enqueue enqueue_many get_job jobs next_ready_at revive run_worker "
    "statistics sweep_expired",
    "JobHandle": "ack fail heartbeat job release retry",
    "Stream": "get_offset publish publish_many publish_with_key read_from_consumer read_since save_offset statistics "
    "subscribe trim_to",
    "Outbox": "delete enqueue get_job jobs revive run_delivery run_once statistics sweep_expired",
    "Tx": "commit enqueue_tx execute get_job_tx get_offset_tx notify_tx outbox_enqueue_tx publish_tx "
    "publish_with_key_tx read_from_consumer_tx read_since_tx rollback save_offset_tx",
    "LockHandle": "release renew",
    "WakeReceiver": "receive receive_nowait",
    "EventReceiver": "receive receive_nowait save_offset",
    "StopToken": "cancel cancel_called scope wait",
}
ATTRIBUTES = {"name", "owner", "token"}  # of handles, read only by convention


def public_things() -> Iterator[tuple[str, Any]]:
    for module in (alkstore_trio, testing):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


def public_members() -> Iterator[tuple[str, Any]]:
    """Methods and properties, inherited ones included; not what a value or an exception gets from elsewhere."""
    for name, thing in public_things():
        if inspect.isclass(thing):
            for member, value in inspect.getmembers(thing):
                ours = getattr(value, "__module__", getattr(getattr(value, "fget", None), "__module__", None)) or ""
                if not member.startswith("_") and callable_or_property(value) and ours.startswith("alkstore_trio"):
                    yield f"{name}.{member}", value


def callable_or_property(value: object) -> bool:
    return isinstance(value, FunctionType | property)


def signatures() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, thing in [*public_things(), *public_members()]:
        if isinstance(thing, FunctionType):
            yield name, thing
        elif isinstance(thing, property):
            assert thing.fget is not None
            yield name, thing.fget


# Exports


def test_what_is_exported_is_what_the_contract_names() -> None:
    assert set(alkstore_trio.__all__) == EXPORTS
    assert set(testing.__all__) == {"LoopClock", "ManualClock", "drain", "hold_lease", "tick"}


@pytest.mark.parametrize("module", [alkstore_trio, testing])
def test_the_list_of_exports_is_sorted_and_whole(module: Any) -> None:
    assert len(set(module.__all__)) == len(module.__all__)
    public = {name for name, thing in vars(module).items() if not name.startswith("_") and not inspect.ismodule(thing)}
    assert public == set(module.__all__)


@pytest.mark.parametrize("handle", VERBS)
def test_a_handle_has_the_verbs_of_the_contract_and_no_others(handle: str) -> None:
    kind = getattr(alkstore_trio, handle)
    assert {name for name in dir(kind) if not name.startswith("_")} - ATTRIBUTES == set(VERBS[handle].split())


def test_every_module_imports_and_says_what_it_is_for() -> None:
    for found in pkgutil.walk_packages([str(PACKAGE)], "alkstore_trio."):
        assert importlib.import_module(found.name).__doc__, found.name


def test_importing_the_package_imports_no_engine_no_driver_no_pytest() -> None:
    code = (
        "import sys, anyio; known = set(sys.modules); import alkstore_trio, alkstore_trio.testing; "
        "print(*sorted(set(sys.modules) - known))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "alkstore_trio.testing" in imported
    assert not imported & {"alkstore_trio._engines", "asyncio", "psycopg", "pytest", "sqlite3", "ssl", "trio"}


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


# Docstrings


DOCUMENTED = dict([*public_things(), *public_members()])
SIGNATURES = dict(signatures())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_everything_public_has_a_docstring_of_its_own(name: str) -> None:
    text = DOCUMENTED[name].__doc__
    assert text
    assert not re.match(r"Initialize self|Method generated by attrs|An enumeration", text)
    assert re.match(r"\S.*[.:]($|\s)", text), "it does not open with a sentence"


# Signatures

FORBIDDEN = re.compile(
    r"\b(Engine|Unit|TxUnit|Op|JobRow|Hub|Inbox|Bell|Stamps|sqlite3|psycopg|trio\.|asyncio\.|Memory\w*)\b"
)


@pytest.mark.parametrize("name", SIGNATURES)
def test_no_engine_and_no_driver_is_in_a_public_signature(name: str) -> None:
    function = SIGNATURES[name]
    hints = {argument: hint for argument, hint in typing.get_type_hints(function).items() if argument != "self"}
    arguments = set(inspect.signature(function).parameters) - {"self"}
    assert arguments | {"return"} == set(hints), "something is not annotated"
    for hint in hints.values():
        assert not FORBIDDEN.search(str(hint)), hint


def test_options_are_keyword_only() -> None:
    for name, function in SIGNATURES.items():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.default is not parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY:
                assert (name.rpartition(".")[2], parameter.name) in POSITIONAL_WITH_A_DEFAULT, (name, parameter)


POSITIONAL_WITH_A_DEFAULT = {
    ("notify", "payload"),
    ("notify_tx", "payload"),
    ("retry", "delay"),
    ("release", "delay"),
    ("heartbeat", "extend"),
    ("jobs", "state"),
    ("run_schedules", "stop"),
    ("execute", "params"),
}


def test_values_are_frozen_and_compare() -> None:
    for name in ("Job", "StreamEvent", "Wake", "QueueStatistics", "StreamStatistics", "Schedule", "ScheduleOptions"):
        kind = getattr(alkstore_trio, name)
        assert attrs.has(kind)
        assert kind.__setattr__ is not object.__setattr__, f"{name} is not frozen"
    assert alkstore_trio.Wake("c") == alkstore_trio.Wake("c")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        alkstore_trio.Wake("c").channel = "d"  # type: ignore[misc]  # what is refused


# Errors

ERRORS: list[tuple[Exception, list[type[BaseException]], list[str]]] = [
    (InvalidName(" bad\0"), [AlkstoreError, ValueError], ["' bad\\x00'", "512 bytes", "white space"]),
    (ReservedName("__alkstore_x"), [AlkstoreError, ValueError], ["'__alkstore_x'", "'__alkstore_'"]),
    (InvalidSpec("*/5 * * * *"), [AlkstoreError, ValueError], ["'*/5 * * * *'", "@every <n><unit>"]),
    (CodecError("payload"), [AlkstoreError, ValueError], ["payload"]),
    (PayloadTooLarge(7_999, 8_000), [AlkstoreError], ["7999", "8000"]),
    (Closed(), [AlkstoreError, anyio.ClosedResourceError], ["closed"]),
    (Closed("the receiver is closed"), [AlkstoreError, anyio.ClosedResourceError], ["the receiver is closed"]),
    (LeadershipLost("lost"), [AlkstoreError], ["lost"]),
    (LockHeld("held"), [AlkstoreError], ["held"]),
    (LockLost("lost"), [AlkstoreError], ["lost"]),
    (DatabaseError("away", retryable=True), [AlkstoreError], ["away"]),
    (DatabaseError("away", transient=True), [AlkstoreError], ["away"]),
    (CommitUnknown("broken"), [DatabaseError, AlkstoreError], ["broken"]),
    (Discard("no use"), [Exception], ["no use"]),
    (Snooze(5), [Exception], ["5"]),
    (Snooze(timedelta(minutes=1)), [Exception], ["0:01:00"]),
]
each_error = pytest.mark.parametrize(("error", "bases", "told"), ERRORS, ids=lambda value: type(value).__name__)


def test_every_exported_error_is_in_the_table() -> None:
    kinds = {thing for _, thing in public_things() if inspect.isclass(thing) and issubclass(thing, Exception)}
    assert {type(error) for error, _, _ in ERRORS} == kinds - {AlkstoreError}


@each_error
def test_an_error_is_where_the_tree_has_it(error: Exception, bases: list[type[BaseException]], told: list[str]) -> None:
    for base in bases:
        assert isinstance(error, base)
    for other in (ValueError, TypeError, RuntimeError, OSError):
        assert isinstance(error, other) is (other in bases)
    assert isinstance(error, AlkstoreError) is (AlkstoreError in bases)


@each_error
def test_an_error_survives_pickling(error: Exception, bases: list[type[BaseException]], told: list[str]) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is type(error)
        assert (copy.args, str(copy), vars(copy)) == (error.args, str(error), vars(error))


@each_error
def test_an_error_tells_what_was_wrong_and_what_would_be_right(
    error: Exception, bases: list[type[BaseException]], told: list[str]
) -> None:
    for part in told:
        assert part in str(error)


@pytest.mark.parametrize(
    "error", [InvalidName("x" * 100_000), ReservedName("__alkstore_" + "x" * 500), InvalidSpec("x" * 10**6)]
)
def test_a_message_stays_readable_however_long_the_value(error: Exception) -> None:
    assert len(str(error)) < 500


def test_what_to_do_about_a_database_error_is_on_it() -> None:
    assert (DatabaseError("x").retryable, DatabaseError("x").transient) == (False, False)
    assert DatabaseError("x", retryable=True).retryable
    assert DatabaseError("x", transient=True).transient
    unknown = CommitUnknown("x")
    assert (unknown.retryable, unknown.transient) == (False, False)


REFUSALS: dict[str, tuple[Callable[[Store], Awaitable[object]], str]] = {
    "name": (lambda store: store.notify("\t"), r"'\t'"),
    "reserved name": (lambda store: store.notify("__alkstore_x"), "'__alkstore_x'"),
    "name of a wrong type": (lambda store: store.notify(5), "int"),  # type: ignore[arg-type]  # refused
    "spec": (lambda store: store.schedule("x", "@hourly", "q", 1), "'@hourly'"),
    "payload": (lambda store: store.notify("c", {1, 2}), "set"),
    "ttl": (lambda store: store.try_lock("l", "o", -2.5), "ttl must be above zero, not -2.5"),
    "priority": (lambda store: store.queue("q").enqueue(1, priority=2**63), str(2**63)),
    "max_attempts": (lambda store: store.queue("q").enqueue(1, max_attempts=0), "at least 1, not 0"),
    "delay": (lambda store: store.queue("q").enqueue(1, delay=float("nan")), "delay must be finite, not nan"),
    "limit": (lambda store: store.stream("s").read_since(0, 1.5), "limit must be an int, not float"),  # type: ignore[arg-type]  # refused
    "state": (lambda store: store.queue("q").jobs("dead"), "JobState or None, not str"),  # type: ignore[arg-type]  # refused
    "attempts": (lambda store: store.with_tx(lambda tx: tx.commit(), attempts=0), "attempts must be at least 1, not 0"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_names_the_offending_value(refusal: str) -> None:
    async def refused() -> None:
        call, told = REFUSALS[refusal]
        async with open_memory() as store:
            with pytest.raises((TypeError, ValueError)) as caught:
                await call(store)
        assert told in str(caught.value)

    anyio.run(refused)


# Ops

SCENARIO = """
import attrs

defined = attrs.define


def define(*arguments, **options):
    frozen = arguments and any(base.__name__ == "Op" for base in arguments[0].__mro__)
    return (attrs.frozen if frozen else defined)(*arguments, **options)


attrs.define = define
import alkstore_trio._ops as ops

attrs.define = defined

import anyio
import alkstore_trio._engines.tables as tables
from alkstore_trio import open_memory
from alkstore_trio.testing import ManualClock, drain, tick


async def fail(job):
    raise ValueError


async def main():
    clock = ManualClock()
    async with open_memory(clock=clock) as store:
        queue, stream = store.queue("q", dead_retention=1), store.stream("s")
        await queue.enqueue("x")
        await queue.enqueue_many("xyz", priority=1, expires=100, delay=-1)
        first, second, third, fourth = await queue.claim_batch("w", 4)
        await first.heartbeat(), await first.ack(), await second.fail("x")
        await third.retry("x"), await fourth.release()
        await queue.ack_batch(await queue.claim_batch("w", 1))
        await queue.revive([1, 2, 3, 4]), await queue.delete([1]), await queue.get_job(2), await queue.jobs()
        await queue.statistics(), await queue.next_ready_at(), await queue.sweep_expired()
        clock.advance(1000)
        assert await drain(queue, fail) >= 0
        async with store.listen("c") as wakes, stream.subscribe("c") as events:
            async with store.transaction() as tx:
                await tx.enqueue_tx("q", 1), await tx.outbox_enqueue_tx("o", 1), await tx.notify_tx("c")
                await tx.publish_tx("s", 1), await tx.publish_with_key_tx("s", "k", 1)
                await tx.save_offset_tx("s", "c", 1), await tx.get_offset_tx("s", "c"), await tx.get_job_tx("q", 1)
                await tx.read_since_tx("s", 0, 9), await tx.read_from_consumer_tx("s", "c", 9)
            await wakes.receive()
            await events.save_offset((await events.receive()).offset)
        await stream.publish(1), await stream.statistics(), await stream.trim_to(1), await stream.get_offset("c")
        await stream.read_from_consumer("c", 9), await store.streams(), await store.queues(), await store.notify("c")
        async with store.hold_lock("l", 5) as lock:
            await lock.renew(5), await clock.settled()
        await store.schedule("x", "@every 1s", "q", 1)
        clock.advance(200)
        assert await tick(store) == 64
        await store.schedules(), await store.unschedule("x")
        await store.outbox("o").run_once("w", lambda handle: anyio.lowlevel.checkpoint())


asked = set()


def recording(op, handler):
    assert op.__setattr__ is not object.__setattr__, f"{op} is not frozen here"
    return lambda *arguments: [asked.add(op), handler(*arguments)][1]


tables.HANDLERS.update({op: recording(op, handler) for op, handler in tables.HANDLERS.items()})
anyio.run(main)
anyio.run(main, backend="trio")
assert asked == set(tables.HANDLERS), set(tables.HANDLERS) - asked
"""


def test_no_op_is_changed_once_it_is_built() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCENARIO], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_op_has_a_handler() -> None:
    from alkstore_trio import _ops
    from alkstore_trio._engines import memory, tables

    def built(kind: type) -> set[type]:
        return {op for op in vars(_ops).values() if inspect.isclass(op) and issubclass(op, kind) and attrs.has(op)}

    assert set(tables.HANDLERS) == built(_ops.Op)
    assert set(memory._HANDLERS) == built(_ops.Write) | built(_ops.TxRead)
    assert set(tables._APPLIERS) == built(_ops.Write)
