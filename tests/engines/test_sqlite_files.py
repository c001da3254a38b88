"""Which files a store takes, and what it says of those that it does not."""

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest

from alkstore_trio import DatabaseError, open_sqlite, open_store
from alkstore_trio._engines.sqlite import file
from alkstore_trio.schema import script
from alkstore_trio.testing import ManualClock, tick

pytestmark = pytest.mark.anyio


async def _failure(path: Path, **options: Any) -> str:
    """What is said of a file that cannot be opened."""
    with pytest.raises(DatabaseError) as caught:
        async with open_sqlite(path, **options):
            pytest.fail("opened")
    assert not caught.value.retryable
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_a_file_is_made_and_found_again(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "a.db") as store:
        job_id = await store.queue("q").enqueue({"ä": 1})
    async with open_sqlite(str(tmp_path / "a.db")) as store:
        job = await store.queue("q").get_job(job_id)
        assert job is not None
        assert job.payload == {"ä": 1}
        assert await store.queue("q").enqueue("next") == job_id + 1
    assert os.listdir(tmp_path) == ["a.db"]


async def test_a_store_is_opened_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///a b%3F.db", durability="normal") as store:
        await store.queue("q").enqueue(1)
    async with open_store(f"sqlite:///{tmp_path}/a b%3F.db") as store:
        assert await store.queues() == ["q"]
    assert os.listdir(tmp_path) == ["a b?.db"]


async def test_a_url_names_the_very_file_that_is_written_in_it(tmp_path: Path) -> None:
    names = {"%E9": b"\xe9", "é": "é".encode(), "%C3%A8": "è".encode(), "a%09b": b"a\tb", " [x]:@": b" [x]:@"}
    for written, name in names.items():
        async with open_store(f"sqlite:///{tmp_path}/{written}") as store, store.listen("channel"):
            assert await store.queue("q").enqueue(name.hex()) == 1
            assert os.fsencode(os.path.basename(store._engine.file.path)) == name  # type: ignore[attr-defined]
            assert name in os.listdir(os.fsencode(tmp_path))
            with closing(sqlite3.connect(tmp_path / os.fsdecode(name), isolation_level=None)) as connection:
                connection.execute("begin immediate")
                assert store.join(connection).enqueue_tx("q", 1) > 1
    assert sorted(os.listdir(os.fsencode(tmp_path))) == sorted(names.values())


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/a.db",
        "sqlite:///a.db?x=1",
        "sqlite:///a.db#x",
        "sqlite:///a\tb.db",
        "sqlite:////tmp/a.db\n",
        "sqlite:///a\r.db",
        "sqlite:///a\x7f.db",
        "sqlite:///a\0.db",
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:///relative\.db"):
        open_store(url)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"path": ":memory:"}, ValueError, "open_memory"),
        ({"path": ""}, ValueError, "name a file"),
        ({"path": "a\0b"}, ValueError, "name a file"),
        ({"path": 3}, TypeError, "path"),
        ({"path": b"a.db"}, TypeError, "path"),
        ({"path": "a.db", "durability": "none"}, ValueError, "'full' or 'normal'"),
        ({"path": "a.db", "table_prefix": "a-b"}, ValueError, "table_prefix"),
        ({"path": "a.db", "table_prefix": "sqlite_"}, ValueError, "table_prefix"),
        ({"path": "a.db", "table_prefix": ""}, ValueError, "table_prefix"),
        ({"path": "a.db", "table_prefix": None}, TypeError, "table_prefix"),
        ({"path": "a.db", "busy_timeout": 0}, ValueError, "busy_timeout"),
        ({"path": "a.db", "busy_timeout": "1"}, TypeError, "busy_timeout"),
        ({"path": "a.db", "clock": 3}, TypeError, "clock"),
    ],
)
def test_an_argument_is_judged_at_the_call(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    call: Callable[..., object] = open_sqlite
    with pytest.raises(error, match=says):
        call(**arguments)


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "is a folder" in await _failure(tmp_path)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert f"no folder '{tmp_path}/missing'" in await _failure(tmp_path / "missing" / "a.db")


async def test_something_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "no regular file" in await _failure(tmp_path / "fifo")


async def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(text := b"not a database " * 100)
    assert "no SQLite database" in await _failure(path)
    assert path.read_bytes() == text


async def test_a_corrupted_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_sqlite(path) as store:
        await store.queue("q").enqueue_many(["x" * 1000] * 200)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(DatabaseError, match="corrupted") as caught:
        async with open_sqlite(path) as store:
            await store.queue("q").enqueue(1)
    assert not caught.value.transient


async def test_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_sqlite(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("update alkstore_schema set version = 99")
        before = list(connection.iterdump())
        assert "version 99" in await _failure(path)
        assert list(connection.iterdump()) == before


@pytest.mark.parametrize("version", ["'abc'", "null", "0", "-1", "1.5", "x'00'", "1), (1"])
async def test_a_table_of_the_schemas_name_that_is_somebody_elses_is_told_and_left_as_it_is(
    tmp_path: Path, version: str
) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table alkstore_schema(version)")
        connection.execute(f"insert into alkstore_schema values ({version})")
        before = list(connection.iterdump())
        assert "not the store's" in await _failure(path)
        assert list(connection.iterdump()) == before


async def test_a_schema_that_somebody_else_has_made_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script("sqlite"))
    async with open_sqlite(path) as store:
        assert await store.queue("q").enqueue(1) == 1


async def test_a_file_may_be_shared_by_two_prefixes_and_an_application(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table jobs(mine text)")
    async with open_sqlite(path, table_prefix="one_") as one, open_sqlite(path, table_prefix="two_") as two:
        await one.queue("q").enqueue("of one")
        assert await two.queues() == []
        await two.stream("s").publish("of two")
        assert await one.streams() == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select count(*) from jobs").fetchone() == (0,)


async def test_names_are_sorted_alike_in_a_file_whose_application_keeps_its_texts_otherwise(tmp_path: Path) -> None:
    path, names, clock = tmp_path / "a.db", ["b", "ā", "豈", "😀", "a"], ManualClock()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma encoding = 'UTF-16'")
        connection.execute("create table theirs(x)")
    async with open_sqlite(path, clock=clock) as store:
        for name in names:
            await store.queue(name).enqueue(1)
            await store.stream(name).publish(1)
            await store.schedule(name, "@every 1s", "q", name)
        assert await store.queues() == await store.streams() == sorted(names)
        assert [state.schedule.name for state in await store.schedules()] == sorted(names)
        clock.advance(1)
        assert await tick(store) == len(names)
        assert [job.payload for job in await store.queue("q").jobs()] == sorted(names)


async def test_many_stores_may_make_one_file_at_once(tmp_path: Path) -> None:
    stores = 8
    ready: list[int] = []

    async def open_and_write(number: int) -> None:
        async with open_sqlite(tmp_path / "a.db", durability="normal") as store:
            await store.queue("q").enqueue(number)
            ready.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(stores):
            tasks.start_soon(open_and_write, number)
    async with open_sqlite(tmp_path / "a.db") as store:
        jobs = await store.queue("q").jobs()
    assert sorted(job.payload for job in jobs) == sorted(ready) == list(range(stores))


_OPEN_AS_NOBODY = """
import os, sys, tempfile, trio
from alkstore_trio import DatabaseError, open_sqlite

async def open_and_say_so(path):
    async with open_sqlite(path):
        print("opened")

with tempfile.TemporaryDirectory() as folder:  # has all imported, which nobody may not be allowed to read
    trio.run(open_and_say_so, os.path.join(folder, "a.db"))
if os.getuid() == 0:  # who may write anywhere
    os.setuid(65534)
try:
    trio.run(open_and_say_so, sys.argv[1])
except DatabaseError as error:
    print(error)
"""


@pytest.mark.parametrize("folder_too", [False, True], ids=["file", "file and folder"])
async def test_a_read_only_file_is_refused(folder_too: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.db")
        async with open_sqlite(path):
            pass
        os.chmod(path, 0o444)
        os.chmod(folder, 0o555 if folder_too else 0o777)
        child = await anyio.run_process([sys.executable, "-c", _OPEN_AS_NOBODY, str(path)])
        said = child.stdout.decode()
        assert str(path) in said
        assert "is read-only" in said


async def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_file_system", lambda folder: "nfs4")
    assert "network file system (nfs4)" in await _failure(tmp_path / "a.db")


async def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(DatabaseError, match=r"3\.37"):
        async with open_sqlite(tmp_path / "a.db"):
            pytest.fail("opened")


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((4, 0, 0), False),
    ],
)
async def test_one_warning_tells_of_a_version_that_can_lose_commits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: tuple[int, int, int],
    warned: bool,
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    async with open_sqlite(tmp_path / "a.db"):
        pass
    said = [record.getMessage() for record in caplog.records if record.name == "alkstore_trio"]
    assert len(said) == warned
    assert all("wal_autocheckpoint = 0" in message for message in said)


async def test_no_connection_of_ours_checkpoints_by_itself(tmp_path: Path) -> None:
    session = file.File(str(tmp_path / "a.db"), "full", "alkstore_", 1.0).connect()
    try:
        settings = {
            name: session.query(f"pragma {name}")[0][0] for name in ("wal_autocheckpoint", "mmap_size", "synchronous")
        }
        assert settings == {"wal_autocheckpoint": 0, "mmap_size": 0, "synchronous": 2}
    finally:
        session.close()


async def test_use_after_a_fork_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_sqlite(tmp_path / "a.db") as store:
        parent = os.getpid()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: parent + 1)
            with pytest.raises(RuntimeError, match="fork"):
                await store.queue("q").enqueue(1)
            with pytest.raises(RuntimeError, match="fork"):
                store.queue("q")
        await store.queue("q").enqueue(1)


async def test_a_store_without_a_clock_reads_the_hosts(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    before = time.time()
    async with open_sqlite(path) as store:
        await store.queue("q").enqueue("alone")
        async with store.transaction() as tx:
            await tx.enqueue_tx("q", "in a transaction")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            store.join(connection).enqueue_tx("q", "joined")
            connection.execute("commit")
        after = time.time()
        jobs = await store.queue("q").jobs()
    assert [job.payload for job in jobs] == ["alone", "in a transaction", "joined"]
    assert all(before <= job.created_at <= after for job in jobs)
