"""Wakes between stores on one file: what is kept of them, for how long, and what happens without FIFOs."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from alkstore_trio import StopToken, Wake, _receivers, _waiting, open_sqlite
from alkstore_trio._engines import sqlops
from alkstore_trio._engines.sqlite import engine
from alkstore_trio._engines.sqlite.peers import POKE, HashedHub, Peers, mark
from alkstore_trio._rules.names import RECONNECTED
from alkstore_trio._wake import Bell

pytestmark = pytest.mark.anyio

_BOUND = 20.0  # seconds after which a test hangs


def _kept(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [kept] = connection.execute("select count(*) from alkstore_wakes").fetchone()
    return int(kept)


async def test_a_channel_is_kept_once_however_often_it_is_woken(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_sqlite(path, durability="normal") as store:
        for _ in range(20):
            await store.notify("c")
        assert _kept(path) == 1


async def test_what_is_kept_is_bounded_and_whoever_may_have_missed_something_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlops, "WAKES_KEPT", 8)
    monkeypatch.setattr(sqlops, "PRUNE_EVERY", 16)
    monkeypatch.setattr(engine, "_SAFETY_POLL", 3_600.0)
    path = tmp_path / "a.db"
    async with (
        open_sqlite(path, durability="normal") as one,
        open_sqlite(path, durability="normal") as other,
        other.listen("early") as wakes,
    ):
        with anyio.fail_after(_BOUND):
            await one.notify("early")
            assert await wakes.receive() == Wake("early")
            with monkeypatch.context() as deaf:
                deaf.setattr(Peers, "tell", lambda *_, **__: None)
                await one.notify("early")
                for number in range(31):
                    await one.notify(f"channel {number}")
                assert _kept(path) <= 8
            one._engine.peers.tell([POKE])  # type: ignore[attr-defined]  # only now does the other look
            while await wakes.receive() != Wake(RECONNECTED):  # before it, what was hinted may have been seen twice
                pass


async def test_a_hint_after_one_that_was_lost_has_its_reader_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_SAFETY_POLL", 3_600.0)
    path = tmp_path / "a.db"
    async with (
        open_sqlite(path, durability="normal") as one,
        open_sqlite(path, durability="normal") as other,
        other.listen("first") as first,
        other.listen("second") as second,
    ):
        with anyio.fail_after(_BOUND):
            await one.notify("second")
            assert await second.receive() == Wake("second")
            with monkeypatch.context() as deaf:
                deaf.setattr(Peers, "tell", lambda *_, **__: None)
                await one.notify("first")
            await one.notify("second")
            assert await second.receive() == Wake("second")
            assert await first.receive() == Wake("first")


async def test_whoever_another_store_wakes_finds_what_it_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for waiting in (_receivers, _waiting):
        monkeypatch.setattr(waiting, "SLICE", 3_600.0)  # nobody looks unasked
    path = tmp_path / "a.db"
    async with (
        open_sqlite(path, durability="normal") as one,
        open_sqlite(path, durability="normal") as other,
        other.stream("s").subscribe("consumer") as events,
    ):
        for number in range(5):
            await one.stream("s").publish(number)
            with anyio.fail_after(_BOUND):
                assert (await events.receive()).payload == number


async def test_stores_that_wake_once_each_leave_no_more_than_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlops, "WAKES_KEPT", 4)
    path = tmp_path / "a.db"
    for _ in range(8):
        async with open_sqlite(path, durability="normal") as store:
            await store.notify("c")
    assert _kept(path) <= 5  # what was kept, and the last


async def test_stores_of_two_prefixes_wake_each_other_as_little_as_those_of_two_files(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with (
        open_sqlite(path, durability="normal", table_prefix="one_") as one,
        open_sqlite(path, durability="normal", table_prefix="two_") as two,
        open_sqlite(path, durability="normal", table_prefix="two_") as marking,
        two.listen("c") as wakes,
        two.listen("marker") as marker,
    ):
        await one.notify("c")
        await marking.notify("marker")
        with anyio.fail_after(_BOUND):
            await marker.receive()
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()


async def test_a_store_behind_a_link_is_the_one_that_it_leads_to(tmp_path: Path) -> None:
    path, link = tmp_path / "a.db", tmp_path / "link.db"
    os.symlink(path, link)
    async with (
        open_sqlite(link, durability="normal") as one,
        open_sqlite(path, durability="normal") as other,
        other.listen("c") as wakes,
    ):
        assert sorted(os.listdir(tmp_path)) == ["a.db", "a.db-alkstore", "a.db-shm", "a.db-wal", "link.db"]
        await one.notify("c")
        with anyio.fail_after(_BOUND):
            assert await wakes.receive() == Wake("c")


async def test_a_folder_that_leads_nowhere_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.symlink(tmp_path / "missing", tmp_path / "a.db-alkstore")
    async with open_sqlite(tmp_path / "a.db") as store:
        await store.notify("c")
    assert "polling" in caplog.text


async def test_a_store_hears_nothing_that_was_woken_before_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_sqlite(path, durability="normal") as one:
        await one.notify("c")
        async with open_sqlite(path, durability="normal") as other, other.listen("c") as wakes:
            async with other.listen("marker") as marker:
                await one.notify("marker")
                with anyio.fail_after(_BOUND):
                    await marker.receive()
            with pytest.raises(anyio.WouldBlock):
                wakes.receive_nowait()


async def test_without_fifos_stores_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "mkfifo")
    path = tmp_path / "a.db"
    async with (
        open_sqlite(path, durability="normal") as one,
        open_sqlite(path, durability="normal") as other,
        other.listen("c") as wakes,
    ):
        assert "polling" in caplog.text
        await one.notify("c")
        with anyio.fail_after(_BOUND):
            assert await wakes.receive() == Wake("c")
    assert os.listdir(tmp_path) == ["a.db"]


async def test_a_folder_that_cannot_be_made_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.db-alkstore").write_text("in the way")
    async with open_sqlite(tmp_path / "a.db") as store, store.listen("c") as wakes:
        await store.notify("c")
        with anyio.fail_after(_BOUND):
            await wakes.receive()
    assert caplog.text.count("no FIFO in") == 1


async def test_a_peer_that_does_not_read_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    async with open_sqlite(path, durability="normal") as one:
        deaf = Peers(str(path), "alkstore_", "1-deaf")
        deaf.open()
        try:
            for _ in range(20):  # as much as a FIFO holds, and more
                deaf.tell([(mark("c"), 1, 1)] * 300, oneself=True)
            with anyio.fail_after(_BOUND):
                await one.notify("c")
            assert deaf.read() is None  # too many: it looks, whatever they are
            assert deaf.read() == []
        finally:
            deaf.close()


async def test_a_runner_is_woken_by_a_schedule_of_another_store(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with (
        open_sqlite(path, durability="normal") as one,
        open_sqlite(path, durability="normal") as other,
        anyio.create_task_group() as tasks,
    ):
        stop = StopToken()
        await tasks.start(lambda *, task_status: other.run_schedules(stop, task_status=task_status))
        await one.schedule("n", "@every 1s", "q", "x")
        with anyio.fail_after(_BOUND):
            while not await one.queues():  # noqa: ASYNC110  # another store's work has no event here
                await anyio.sleep(0.05)
        stop.cancel()


def test_a_hub_knows_the_marks_of_its_channels() -> None:
    hub, bell, other = HashedHub(), Bell(), Bell()
    hub.attach("a", bell)
    hub.attach("a", other)
    hub.attach("b", bell)
    assert hub.marks == {mark("a"): "a", mark("b"): "b"}
    hub.detach("a", bell)
    assert mark("a") in hub.marks
    hub.detach("a", other)
    hub.detach("a", other)
    assert hub.marks == {mark("b"): "b"}


def test_origins_fit_and_differ() -> None:
    origins = {engine._origin() for _ in range(100)}
    assert len(origins) == 100
    assert all(0 <= origin < 2**63 for origin in origins)
