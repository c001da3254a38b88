"""Opening a store: the one module that knows the engines."""

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal
from urllib.parse import unquote

from ._engine import Engine
from ._errors import shown
from ._rules.bounds import Seconds, at_least, duration
from ._rules.names import UNWRITABLE
from ._store import Store
from ._waiting import Background
from ._wake import Hub

__all__ = ["open_engine", "open_memory", "open_postgres", "open_sqlite", "open_store"]


def open_memory(*, clock: Callable[[], float] | None = None) -> AbstractAsyncContextManager[Store]:
    """A store in this process's memory: ``async with`` gives a `Store`; nothing of it survives the block.

    ``clock`` gives unix seconds, the host's by default. One that also has ``async sleep(seconds)`` is waited on through
    that.
    """
    _check_clock(clock)

    def memory() -> Engine:
        from ._engines.memory import MemoryEngine

        return MemoryEngine(Hub(), clock)

    return open_engine(memory)


@asynccontextmanager
async def open_engine(make: Callable[[], Engine]) -> AsyncIterator[Store]:
    """A store on an engine that is made, in the running loop, when the block is entered."""
    store = Store(make())
    try:
        yield store
    finally:
        await store.aclose()


def open_sqlite(
    path: str | os.PathLike[str],
    *,
    durability: Literal["full", "normal"] = "full",
    table_prefix: str = "alkstore_",
    busy_timeout: Seconds = 30,
    clock: Callable[[], float] | None = None,
) -> AbstractAsyncContextManager[Store]:
    """A store in an SQLite file, which any number of processes of one host may open: ``async with`` gives a `Store`.

    The file is made if there is none. With ``durability="full"`` what has returned survives a power cut, with
    ``"normal"`` a killed process. The store's tables begin with ``table_prefix``, so that a file may be shared with an
    application's own. A write waits ``busy_timeout`` seconds for other connections, then it is a `DatabaseError` that
    is ``transient``. ``clock`` as for `open_memory`, but after a first reading in the loop it is read in the store's
    threads too, where a verb has waited for all that it waits for: it must not need the loop then, and several threads
    may read it at once.

    Entered, it raises a `DatabaseError` for a file that cannot be opened or be a store, and says why.
    """
    from ._engines.schema import checked_prefix

    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"path must be a str or a path of one, not {type(path).__name__}")
    if text == ":memory:":
        raise ValueError("a store in memory is opened with open_memory()")
    if not text or "\0" in text:
        raise ValueError(f"path must name a file, not {shown(text)}")
    if durability not in ("full", "normal"):
        raise ValueError(f"durability must be 'full' or 'normal', not {shown(durability)}")
    checked_prefix(table_prefix)
    seconds = duration(busy_timeout, "busy_timeout")
    _check_clock(clock)
    # SQLite keeps what belongs to a file beside what a link to it leads to, and so do we.
    return _sqlite(os.path.realpath(text), durability, table_prefix, seconds, clock)


@asynccontextmanager
async def _sqlite(
    path: str, durability: str, prefix: str, busy_timeout: float, clock: Callable[[], float] | None
) -> AsyncIterator[Store]:
    from ._engines.sqlite import File, SqliteEngine

    engine = SqliteEngine(File(path, durability, prefix, busy_timeout), clock)
    await engine.open()
    async with open_engine(lambda: engine) as store, Background() as background:
        background.start_soon(engine.hear)
        yield store


def open_postgres(
    dsn: str,
    *,
    schema: str = "alkstore",
    max_connections: int = 10,
    lock_timeout: Seconds = 10,
    listen_dsn: str | None = None,
    wakes: Literal["listen", "poll"] = "listen",
    clock: Callable[[], float] | None = None,
) -> AbstractAsyncContextManager[Store]:
    """A store in a schema of a Postgres database, which any number of hosts may open: ``async with`` gives a `Store`.

    Needs the extra ``alkstore-trio[postgres]``. ``dsn`` is a URL or keywords as libpq takes them. The schema is made if
    there is none. At most ``max_connections`` are open for statements, of which transactions take all but one, two more
    for wakes, and now and then one for upkeep. Of those for wakes one listens, by ``listen_dsn`` where ``dsn`` leads
    through a pooler that cannot; with ``wakes="poll"`` none does and everybody who waits looks once a second. What
    waits for a row that a transaction holds is a `DatabaseError` that is ``transient`` after ``lock_timeout`` seconds.
    Without ``clock`` the server's own decides; otherwise as for `open_memory`.

    Entered, it raises a `DatabaseError` for a server that cannot be reached or be a store, and says why.
    """
    from ._engines.schema import quoted

    for name, conninfo in (("dsn", dsn), ("listen_dsn", "" if listen_dsn is None else listen_dsn)):
        if not isinstance(conninfo, str):
            raise TypeError(f"{name} must be a str, not {type(conninfo).__name__}")
        if UNWRITABLE.search(conninfo):
            raise ValueError(f"{name} has a NUL or a lone surrogate in it")  # and perhaps a password
    if wakes not in ("listen", "poll"):
        raise ValueError(f"wakes must be 'listen' or 'poll', not {shown(wakes)}")
    place = quoted(schema)
    connections = at_least(2, max_connections, "max_connections")
    seconds = duration(lock_timeout, "lock_timeout")
    _check_clock(clock)
    return _postgres(dsn, place, connections, seconds, listen_dsn or dsn if wakes == "listen" else None, clock)


@asynccontextmanager
async def _postgres(
    dsn: str,
    schema: str,
    max_connections: int,
    lock_timeout: float,
    listen_dsn: str | None,
    clock: Callable[[], float] | None,
) -> AsyncIterator[Store]:
    from ._engines.postgres import PostgresEngine, Server, redacted

    server = Server(dsn, redacted(dsn), schema, lock_timeout)
    ears = None if listen_dsn is None else Server(listen_dsn, redacted(listen_dsn), schema, lock_timeout)
    engine = PostgresEngine(server, ears, max_connections, clock)
    await engine.open()
    async with Background() as background, open_engine(lambda: engine) as store:  # whose closing it helps with
        engine.serve(background.start_soon)
        yield store


def _check_clock(clock: object) -> None:
    if clock is not None and not callable(clock):
        raise TypeError(f"clock must be a callable giving unix seconds, not {clock!r}")


def _from_memory_url(url: str, **options: Any) -> AbstractAsyncContextManager[Store]:
    if url != "memory:":
        raise ValueError("the URL of a memory store is 'memory:' and nothing more")
    return open_memory(**options)


def _from_sqlite_url(url: str, **options: Any) -> AbstractAsyncContextManager[Store]:
    found = re.fullmatch(r"sqlite:///([^?#\x00-\x1f\x7f]+)", url)  # not `urlsplit`, which drops tabs and newlines
    if found is None:
        raise ValueError(
            f"the URL of an SQLite store is 'sqlite:///relative.db' or 'sqlite:////absolute.db', not {shown(url)}; "
            "options are arguments, and '?', '#', '%' and control characters in a path are written as %3F and so on"
        )
    return open_sqlite(unquote(found[1], errors="surrogateescape"), **options)


_SCHEMES: dict[str, Callable[..., AbstractAsyncContextManager[Store]]] = {
    "memory": _from_memory_url,
    "sqlite": _from_sqlite_url,
    "postgresql": open_postgres,
    "postgres": open_postgres,
}


def open_store(url: str, **options: Any) -> AbstractAsyncContextManager[Store]:
    """A store by URL: ``memory:``, ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://...``.

    The options are those of the engine's own ``open_*`` function.
    """
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}")
    scheme = found[0] if (found := re.match(r"[a-z][a-z0-9+.-]*(?=:)", url)) else ""  # never what may be a password
    opener = _SCHEMES.get(scheme)
    if opener is None:
        raise ValueError(f"unknown scheme {scheme!r}: a store's URL is one of {', '.join(f'{s}:' for s in _SCHEMES)}")
    return opener(url, **options)
