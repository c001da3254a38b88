"""Every verb on SQLite, and opening and closing, while the n-th operation of the disk fails, n = 1, 2, ... in turn.

The disk fails once, or from then on until it is mended. Each time all or nothing was done, and once the disk is mended
the store can be asked again, and the books and the file are whole.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

import anyio
import attrs
import pytest

from alkstore_trio import CommitUnknown, DatabaseError, Store, open_sqlite
from alkstore_trio._engines.sqlite import file
from alkstore_trio._engines.sqlite.file import Session
from alkstore_trio.testing import ManualClock
from alkstore_trio.testing.conformance.verbs import spoiling, works
from tests.engines.books import Account, account, balanced, balances, check_unlocked
from tests.engines.disk import NO_DISK, Disk, aside, failing_disk
from tests.engines.faults import CASES, HOSTED, PATIENT, START, TABLES, HurriedClock, places
from tests.folders import FOLDER

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(NO_DISK), reason=NO_DISK or "there is one")]

_BOUND = 100.0  # seconds that no sweep takes

# What asks the disk nothing: what is staged, and what has been read.
_NEVER_FAIL = {
    *(f"Tx.{verb}" for verb in ("enqueue_tx", "outbox_enqueue_tx", "notify_tx", "rollback")),
    *(f"{kind}Receiver.{verb}" for kind in ("Wake", "Event") for verb in ("receive", "__anext__")),
}


_ONCE_AND_FOR_GOOD = pytest.mark.parametrize(("anyio_backend", "for_good"), [("trio", False), ("asyncio", True)])


@pytest.fixture
def disk() -> Iterator[Disk]:
    with failing_disk() as disk:
        yield disk


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=FOLDER) as folder:
        yield Path(folder)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "store.db"


@attrs.frozen
class Outside:
    """Who looks at a file past the store and its disk."""

    connection: sqlite3.Connection

    def rows(self) -> list[Any]:
        """All rows that are there, but for ids and tokens, which a failure may use up."""
        rows: list[Any] = []
        for table in TABLES:
            cursor = self.connection.execute(f"select * from alkstore_{table} order by 1, 2")
            names = [name for name, *_ in cursor.description]
            shown = [number for number, name in enumerate(names) if name not in ("id", "token")]
            rows.append([tuple(row[number] for number in shown) for row in cursor])
        return rows

    def clear(self, clock: ManualClock) -> None:
        """Have the file be as new."""
        clock.set(START)
        for table in TABLES:
            self.connection.execute(f"delete from alkstore_{table}")


async def _books(store: Store, path: Path) -> Account:
    """What is open once all connections are, which the threads that read make when they are first asked."""
    engine: Any = store._engine
    meeting = Barrier(2)

    def meet(session: Session) -> None:
        session.query("select * from sqlite_master")
        meeting.wait(_BOUND)

    async with anyio.create_task_group() as tasks:
        for _ in range(meeting.parties):
            tasks.start_soon(engine.ask, engine._readers.submit, meet)
    check_unlocked(path, "at first")  # the descriptor of a file in use is not closed, but used again
    return account()


async def _seen(store: Store, clock: ManualClock, outside: Outside, *, called: bool) -> dict[str, Any]:
    """What is there after each arrangement, its call made or not."""
    seen = {}
    for name, arrangement in CASES.items():
        outside.clear(clock)
        async with arrangement(store, clock) as call:
            if called:
                await call()
        seen[name] = outside.rows()
    return seen


@_ONCE_AND_FOR_GOOD
async def test_a_verb_whose_nth_operation_of_the_disk_fails_did_nothing_or_all_and_can_be_asked_again(
    disk: Disk, path: Path, anyio_backend: str, for_good: bool
) -> None:
    clock = ManualClock()
    failed, operations = set(), set()
    with anyio.fail_after(_BOUND):
        async with balances("the store"), open_sqlite(path, clock=clock) as store:
            with closing(aside(path, timeout=_BOUND)) as connection:
                outside = Outside(connection)
                nothing = await _seen(store, clock, outside, called=False)
                everything = await _seen(store, clock, outside, called=True)
                books = await _books(store, path)
                for name, arrangement in CASES.items():
                    for n in places(name):
                        outside.clear(clock)
                        stands = True  # once the arrangement is left
                        with spoiling(store):
                            async with arrangement(store, clock) as call:
                                before = outside.rows()
                                disk.fail(n, for_good=for_good)
                                failure = None
                                try:
                                    await call()
                                except DatabaseError as error:
                                    failure = error
                                reached = disk.mend()
                                about = f"{name}, whose operation {n} ({disk.failed}) fails"
                                if failure is not None:
                                    failed.add(name)
                                    operations.add(disk.failed)
                                    assert failure.transient or isinstance(failure, CommitUnknown), about
                                    assert isinstance(failure, CommitUnknown) <= ("sync" in disk.all_failed), about
                                    assert isinstance(failure.__cause__, sqlite3.OperationalError), about
                                    assert outside.rows() == before, about
                                    stands = not name.startswith("Tx.")
                                    if stands:
                                        await call()
                        assert outside.rows() == (everything if stands else nothing)[name], about
                        if not reached:
                            break
                    await balanced(account, books, name)
                    check_unlocked(path, name)
                outside.clear(clock)
            await works(store)
    assert failed == CASES.keys() - _NEVER_FAIL
    assert operations >= {"read", "write", "sync", "shm_lock"}


def _found_after_a_kill(path: Path, copy: Path) -> list[Any]:
    """The bodies of the jobs that the next process to open the file would find, if this one ended now."""
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    with closing(aside(copy)) as connection:
        return [body for (body,) in connection.execute("select body from alkstore_jobs")]


async def test_a_commit_that_was_written_and_could_not_be_synced_is_commit_unknown(
    disk: Disk, path: Path, folder: Path
) -> None:
    found: dict[str, set[bool]] = {}
    landed: list[object] = ["first"]
    with anyio.fail_after(_BOUND):
        async with open_sqlite(path) as store:
            await store.queue("q").enqueue("first")
            for n in places("a verb"):
                disk.fail(n)
                failure = None
                try:
                    await store.queue("q").enqueue(n)
                except DatabaseError as error:
                    failure = error
                reached = disk.mend()
                if failure is not None:
                    assert isinstance(failure, CommitUnknown) == (disk.failed == "sync")
                    stands = str(n) in _found_after_a_kill(path, folder / f"{n}.db")
                    found.setdefault(type(failure).__name__, set()).add(stands)
                else:
                    landed.append(n)
                    if not reached:  # else it was the store's look for what other processes have woken that failed
                        break
            assert [job.payload for job in await store.queue("q").jobs()] == landed
    assert found == {"CommitUnknown": {True}, "DatabaseError": {False}}


@pytest.mark.parametrize("checkpointing", [False, True])
async def test_what_has_returned_survives_a_power_cut_unless_durability_was_given_up(
    disk: Disk, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, checkpointing: bool
) -> None:
    if checkpointing:
        monkeypatch.setattr(file, "_WAL_LIMIT", 1)

    def found_after_a_power_cut(name: str) -> list[Any]:
        for place, content in dict(disk.synced or {}).items():
            if place.exists():  # SQLite has a deletion synced
                place.with_name(place.name.replace(path.name, name)).write_bytes(content)
        with closing(aside(folder / name)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
            return [body for (body,) in connection.execute("select body from alkstore_jobs order by id")]

    first = ["0", "1", "2", "3", "4", "5"]
    disk.synced = {}
    with anyio.fail_after(_BOUND):
        async with open_sqlite(path) as store:
            for n in range(5):
                await store.queue("q").enqueue(n)
                assert found_after_a_power_cut(f"{n}.db") == first[: n + 1]
            async with store.transaction() as tx:
                await tx.enqueue_tx("q", 5)
            assert found_after_a_power_cut("tx.db") == first
        async with open_sqlite(path, durability="normal") as store:
            await store.queue("q").enqueue(6)
            left = found_after_a_power_cut("normal.db")
    assert left == first or (checkpointing and left == [*first, "6"])


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_whoever_is_hosted_takes_a_failure_of_the_disk_in_its_stride_or_says_so(
    disk: Disk, path: Path, anyio_backend: str
) -> None:
    clock = HurriedClock()
    with anyio.fail_after(_BOUND):
        async with balances("the store"), open_sqlite(path, clock=clock) as store:
            books = await _books(store, path)
            for name, arrangement in HOSTED.items():
                for n in places(name):
                    clock.set(START)
                    with closing(aside(path, timeout=_BOUND)) as connection:
                        Outside(connection).clear(clock)
                    async with arrangement(store, clock) as call:
                        disk.fail(n)
                        failure = None
                        try:
                            await call()
                        except DatabaseError as error:
                            failure = error
                        reached = disk.mend()
                        about = f"{name}, whose operation {n} ({disk.failed}) fails"
                        assert failure is None or failure.transient or isinstance(failure, CommitUnknown), about
                        assert failure is None or name not in PATIENT, about
                    if name in PATIENT:
                        assert await store.queue("q").jobs() == await store.outbox("o").jobs() == [], about
                    if not reached:
                        break
                await balanced(account, books, name)
                check_unlocked(path, name)


@_ONCE_AND_FOR_GOOD
async def test_a_store_whose_nth_operation_of_the_disk_fails_while_it_opens_says_so_and_can_be_opened_again(
    disk: Disk, folder: Path, anyio_backend: str, for_good: bool
) -> None:
    with anyio.fail_after(_BOUND):
        for n in places("opening"):
            path = folder / f"{n}.db"
            async with balances(f"operation {n}"):
                failure = None
                disk.fail(n, for_good=for_good)
                try:
                    async with open_sqlite(path):
                        reached = disk.mend()
                except DatabaseError as error:
                    failure, reached = error, disk.mend()
                about = f"operation {n} ({disk.failed}) fails"
                assert failure is None or failure.transient, about
                async with open_sqlite(path) as store:
                    await store.queue("q").enqueue("x")
            check_unlocked(path, about)
            if not reached:
                break


@_ONCE_AND_FOR_GOOD
async def test_a_store_whose_nth_operation_of_the_disk_fails_while_it_closes_loses_nothing(
    disk: Disk, folder: Path, anyio_backend: str, for_good: bool
) -> None:
    with anyio.fail_after(_BOUND):
        for n in places("closing"):
            path = folder / f"{n}.db"
            async with balances(f"operation {n}"):
                async with open_sqlite(path) as store:
                    await store.queue("q").enqueue("x")
                    disk.fail(n, for_good=for_good)
                reached = disk.mend()
                about = f"operation {n} ({disk.failed}) fails"
                async with open_sqlite(path) as store:
                    assert [job.payload for job in await store.queue("q").jobs()] == ["x"], about
            check_unlocked(path, about)
            if not reached:
                break
