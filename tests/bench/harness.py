"""How the benchmarks measure: contenders take turns, and what is printed is ratios between them, taken in one run.

A ratio is taken round by round, each contender against its reference of the same round, so that a machine that slows
down slows both. Printed are the median, the quartiles, and the least and greatest of the rounds. Processor time is
counted, so that other processes disturb less; nothing measured here ever waits. The collector is on, as in a user's
program, and for all alike: before each turn it collects, and what is left is set aside until the turn is over.
"""

import argparse
import gc
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from statistics import quantiles
from time import perf_counter
from time import process_time as clock
from typing import Any, TypeVar

import anyio

__all__ = ["PAYLOAD", "Samples", "arguments", "clock", "on_loop", "tasks_of", "turns"]

T = TypeVar("T")

PAYLOAD = {"id": 12345, "kind": "thumbnail", "path": "/images/2024/07/cat.jpg"}  # a small job


def arguments(doc: str | None) -> bool:
    """The command line of a script: whether ``--quick`` was asked, which runs everything and measures nothing."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny size: shows that the script works, no more")
    return bool(parser.parse_args().quick)


def turns(names: Iterable[str], rounds: int) -> Iterator[str]:
    """Whose turn it is, round by round, each round beginning with the next contender; the collector is made ready."""
    order = deque(names)
    for _ in range(rounds):
        for name in tuple(order):
            gc.collect()
            gc.freeze()
            yield name
            gc.unfreeze()
        order.rotate(-1)


def on_loop(backend: str, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work()`` in a fresh loop."""
    return anyio.run(work, backend=backend)


async def tasks_of(n: int, work: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """Seconds by the wall that it takes so many tasks, each doing the same."""
    started = perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(n):
            tasks.start_soon(work)
    return perf_counter() - started


class Samples:
    """What each contender took, round by round, in seconds per unit of work."""

    def __init__(self, title: str) -> None:
        self._taken: dict[str, list[float]] = {}
        print(f"\n{title}")

    def add(self, name: str, seconds: float) -> None:
        self._taken.setdefault(name, []).append(seconds)

    def times(self) -> None:
        """Print a row for each contender: microseconds per unit."""
        for name, taken in self._taken.items():
            _row(name, "us", [seconds * 1e6 for seconds in taken])

    def ratio(self, name: str, reference: str, goal: str = "") -> None:
        """Print the row of a contender in units of its reference."""
        pairs = zip(self._taken[name], self._taken[reference], strict=True)
        _row(f"{name} / {reference}", "x", [one / other for one, other in pairs], goal)


def _row(label: str, unit: str, values: list[float], goal: str = "") -> None:
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    spread = f"[{low:.2f} {high:.2f}]  {min(values):.2f} - {max(values):.2f}"
    print(f"  {label:56} {middle:9.2f} {unit:2}  {spread:36} {goal}".rstrip())
