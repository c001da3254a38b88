"""Opening a store: the one module that knows the engines."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from ._engine import Engine
from ._store import Store
from ._wake import Hub

__all__ = ["open_engine", "open_memory", "open_store"]


def open_memory(*, clock: Callable[[], float] | None = None) -> AbstractAsyncContextManager[Store]:
    """A store in this process's memory: ``async with`` gives a `Store`; nothing of it survives the block.

    ``clock`` gives unix seconds, the host's by default. One that also has ``async sleep(seconds)`` is waited on through
    that.
    """
    if clock is not None and not callable(clock):
        raise TypeError(f"clock must be a callable giving unix seconds, not {clock!r}")

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


_SCHEMES = {"memory": open_memory}


def open_store(url: str, **options: Any) -> AbstractAsyncContextManager[Store]:
    """A store by URL, ``memory:``; the options are those of the engine's own ``open_*`` function."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}")
    scheme = urlsplit(url).scheme
    opener = _SCHEMES.get(scheme)
    if opener is None:
        raise ValueError(f"unknown scheme {scheme!r}: a store's URL is one of {', '.join(f'{s}:' for s in _SCHEMES)}")
    if url != f"{scheme}:":
        raise ValueError("the URL of a memory store is 'memory:' and nothing more")
    return opener(**options)
