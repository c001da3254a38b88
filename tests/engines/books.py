"""The books of a test in which something fails: what a process, a store and its server have open, before and after.

What ends apart from its cause (a session at the server, a connection that a proxy carries) is waited for; a bound turns
what never ends into a failure that says what it is.
"""

import os
import re
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import attrs
import psycopg

from alkstore_trio import Store
from tests.engines.disk import aside
from tests.engines.places import LOCKS, engine_of

__all__ = ["Account", "Sessions", "account", "balanced", "balances", "check_unlocked", "pool_of", "whole"]

_BOUND = 10.0  # seconds that nothing takes to end
_LOOK = 0.002  # seconds between two looks
_DESCRIPTORS = Path("/proc/self/fd")

Account = dict[str, Any]  # each title with what is open under it


def account() -> Account:
    """What this process has: tasks of the loop, threads, descriptors, each kind with how many there are of it."""
    return {"tasks": _tasks(), "threads": Counter(map(_kind, _threads())), "descriptors": Counter(_descriptors())}


def _tasks() -> Counter[str]:
    if "trio" in sys.modules:
        import trio

        try:
            root: Any = trio.lowlevel.current_root_task()
        except RuntimeError:  # it is the other loop's turn
            pass
        else:
            names, left = Counter[str](), [root]
            while left:
                task = left.pop()
                names[task.name] += 1
                left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
            return names
    import asyncio

    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return Counter(coroutine.__qualname__ for coroutine in coroutines)


def _threads() -> list[str]:
    """All but those that trio keeps for itself; in one of them the runner of the tests has it wait."""
    return [thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio thread")]


def _descriptors() -> list[str]:
    if not _DESCRIPTORS.is_dir():
        return []
    kinds = []
    for name in os.listdir(_DESCRIPTORS):
        try:
            kinds.append(_kind(os.readlink(_DESCRIPTORS / name)))
        except FileNotFoundError:  # that of the listing itself
            continue
    return kinds


def _kind(name: str) -> str:
    """A name without the number that tells it from others of its kind."""
    return re.sub(r"[-_: ]*\[?\d+\]?$", "", name)


async def balanced(now: Callable[[], Account], before: Account, about: str) -> None:
    """Wait until all is as it was before."""
    until = anyio.current_time() + _BOUND
    while (there := now()) != before:
        if anyio.current_time() > until:
            wrong = {title: (before[title], there[title]) for title in before if there[title] != before[title]}
            raise AssertionError(f"{about}: the books do not balance, before and now: {wrong}")
        await anyio.sleep(_LOOK)


@asynccontextmanager
async def balances(about: str, now: Callable[[], Account] = account) -> AsyncIterator[None]:
    """What there is after the block is what there was before it."""
    before = now()
    yield
    await balanced(now, before, about)


# Postgres


@attrs.frozen
class Sessions:
    """How the sessions of a place's stores are looked at, over a connection that stays."""

    connection: psycopg.Connection[tuple[Any, ...]]
    name: str  # the application_name that is theirs

    def account(self) -> Account:
        """The sessions by their state, and the locks that they hold or wait for."""
        states = self.connection.execute(
            "select state, count(*) from pg_stat_activity where application_name = %s group by state", (self.name,)
        ).fetchall()
        return {
            "sessions": Counter(dict(states)),
            "locks": self.connection.execute(LOCKS, (self.name,)).fetchall(),
        }


def pool_of(store: Store) -> Account:
    """What a store's pool has, and what the store believes to be under way."""
    engine = engine_of(store)
    pool = engine.pool
    return {
        "taken": len(pool._taken),
        "places": (pool._places, pool._shares, pool._held),
        "waiting": sum(map(len, pool._waiting.values())),
        "holds": len(engine.holds._holds),
        "transactions": dict(+engine._transactions),
        "lanes": len(engine._named) + sum(not lane.idle for lane in engine._lanes()),
    }


def whole(connections: int) -> Account:
    """What `pool_of` gives where so many connections may be had and nothing is under way."""
    return {
        "taken": 0,
        "places": (connections, connections - 1, 0),
        "waiting": 0,
        "holds": 0,
        "transactions": {},
        "lanes": 0,
    }


# SQLite


def check_unlocked(path: Path, about: str) -> None:
    """Nobody holds a lock on a file that keeps others from it, and the file is whole."""
    with closing(aside(path, timeout=_BOUND)) as other:  # the store may be reserving ids
        other.execute("begin immediate")  # nobody writes
        other.execute("rollback")
        [(busy, _, _)] = other.execute("pragma wal_checkpoint(truncate)")
        assert not busy, f"{about}: somebody reads"
        assert other.execute("pragma integrity_check").fetchall() == [("ok",)], about
