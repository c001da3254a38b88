"""The main job: an index of the running Python's standard library, by a pool of workers over one store.

    python examples/index_stdlib.py [--store memory:|sqlite:///index.db] [--loop trio] [--workers 4] [--limit N]

Every ``.py`` file is a job. A worker parses it and, in one transaction, publishes its counts to a stream and puts a
report into an outbox. A subscriber adds the counts up, a delivery takes the reports, a schedule says how far it is, and
in the middle somebody claims jobs and walks away. Delivery is at least once, so a file may be counted and reported more
than once; the sums must not show it, and are checked against a plain sequential count. Exit code 1 if they differ.
"""

import argparse
import ast
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from uuid import uuid4

import anyio
import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from alkstore_trio import Job, JobHandle, StopToken, Store, Tx, open_store

LIBRARY = Path(sysconfig.get_path("stdlib"))
NOT_OURS = {"site-packages", "dist-packages"}
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where a statement keeps its statements

LEASE = 1.0  # seconds that a claim lives unless its worker renews it
ABANDONED = 20  # claims that somebody walks away from
ROWS = 20  # packages in the table


@attrs.frozen
class Counts:
    """What one file, or one package, has."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(
            self.files + other.files,
            self.lines + other.lines,
            self.functions + other.functions,
            self.classes + other.classes,
        )


def library_files() -> list[str]:
    """Every ``.py`` file of the standard library, relative to it; what was installed beside it is not of it."""
    files = (path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))
    return sorted(path.as_posix() for path in files if not NOT_OURS.intersection(path.parts))


def count(file: str) -> Counts:
    """Count the lines and definitions of a file. The library has some that are no Python, on purpose: lines only."""
    source = (LIBRARY / file).read_bytes()
    lines = len(source.splitlines())
    try:
        nodes: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return Counts(1, lines)
    functions = classes = 0
    while nodes:
        node = nodes.pop()
        functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        classes += isinstance(node, ast.ClassDef)
        for block in BLOCKS:
            nodes.extend(getattr(node, block, ()))
    return Counts(1, lines, functions, classes)


@attrs.define
class Sums:
    """Counts by package. Each file is added once, however often it arrives."""

    packages: dict[str, Counts] = attrs.field(factory=dict)
    seen: set[str] = attrs.field(factory=set)

    def add(self, file: str, counts: Counts) -> bool:
        """Add a file; ``False`` if it is in there already."""
        if file in self.seen:
            return False
        self.seen.add(file)
        package = file.partition("/")[0].removesuffix(".py")
        self.packages[package] = self.packages.get(package, Counts()) + counts
        return True


def sequential(files: Iterable[str]) -> Sums:
    """The plain count that the index must equal."""
    sums = Sums()
    for file in files:
        sums.add(file, count(file))
    return sums


class Index:
    """One run over a store. Its names are its own, so that many may share a store."""

    def __init__(self, store: Store, files: list[str], say: Callable[[str], None], advance: Callable[[], None]) -> None:
        run = uuid4().hex[:8]
        self._store = store
        self._files = files
        self._queue = store.queue(f"files-{run}", visibility_timeout=LEASE, max_attempts=10, base_backoff=0)
        self._counts = store.stream(f"counts-{run}")
        self._reports = store.outbox(f"reports-{run}")
        self._ticks = store.queue(f"ticks-{run}")
        self._say = say
        self._advance = advance
        self._halfway = anyio.Event()
        self._pool_stop = StopToken()
        self._pool_ended = False
        self._stop = StopToken()
        self._began = time.perf_counter()
        self._handed_on = self._added = self._delivered = self._retaken = 0
        self.sums = Sums()
        self.reported: set[str] = set()
        self.left = 0

    async def run(self, workers: int) -> None:
        """Index every file: return once each is counted and reported, or one is dead."""
        await self._queue.enqueue_many(self._files)
        await self._store.schedule(self._ticks.name, "@every 1s", self._ticks.name, None)
        deliver = partial(self._reports.run_delivery, self._deliver, concurrency=workers, stop=self._stop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._add_up)
            await tasks.start(deliver)
            await tasks.start(partial(self._store.run_schedules, self._stop, standby=True))
            await tasks.start(partial(self._ticks.run_worker, self._progress, stop=self._stop))
            async with anyio.create_task_group() as pool:
                pool.start_soon(self._abandon)
                pool.start_soon(partial(self._queue.run_worker, self._index, concurrency=workers, stop=self._pool_stop))
            self._pool_ended = True
            self._stop_when_arrived()
        await self._store.unschedule(self._ticks.name)
        await self._ticks.delete([job.id for job in await self._ticks.jobs()])
        await self._counts.trim_to(sys.maxsize)
        self.left = len(await self._queue.jobs()) + len(await self._reports.jobs())

    async def _index(self, job: Job) -> None:
        """The worker's handler: parse a file and hand its counts on, to both places or to neither."""
        self._retaken += job.attempts > 1
        file = job.payload
        counts = attrs.asdict(await anyio.to_thread.run_sync(count, file))  # parsing must not hold up the loop

        async def hand_on(tx: Tx) -> None:
            await tx.outbox_enqueue_tx(self._reports.name, {"file": file, **counts})
            await tx.publish_with_key_tx(self._counts.name, file, counts)

        await self._store.with_tx(hand_on, attempts=5)
        self._handed_on += 1

    async def _abandon(self) -> None:
        """Halfway, claim what is next and never be heard of again: half of it done, half not."""
        with self._pool_stop.scope():
            await self._halfway.wait()
            claims = await self._queue.claim_batch("absent", ABANDONED)
            self._say(f"abandoning {len(claims)} claims, half of them with the work done")
            for handle in claims[: len(claims) // 2]:
                await self._index(handle.job)

    async def _add_up(self) -> None:
        """The subscriber: add up what comes, each file once."""
        with self._stop.scope():
            async with self._counts.subscribe("sums") as events:
                async for event in events:
                    self._added += 1
                    if event.key and self.sums.add(event.key, event.payload_as(lambda counts: Counts(**counts))):
                        self._advance()
                    await events.save_offset(event.offset)
                    if 2 * len(self.sums.seen) >= len(self._files):
                        self._halfway.set()
                    self._stop_when_arrived()

    async def _deliver(self, handle: JobHandle) -> None:
        """The outbox's delivery: its receiver knows a report by its file."""
        self.reported.add(handle.job.payload["file"])
        self._delivered += 1
        self._stop_when_arrived()

    async def _progress(self, tick: Job) -> None:
        """What the schedule fires: say how far it is; stop the pool once the queue is empty, or a job dead."""
        seconds, done = time.perf_counter() - self._began, len(self.sums.seen)
        self._say(f"{seconds:3.0f} s  {done:,} of {len(self._files):,} files, {done / seconds:,.0f}/s")
        queue = await self._queue.statistics()
        if queue.dead or not queue.pending + queue.processing:
            self._pool_stop.cancel()

    def _stop_when_arrived(self) -> None:
        """Stop the rest once the pool has ended and all that it handed on has arrived."""
        if self._pool_ended and self._added >= self._handed_on <= self._delivered:
            self._stop.cancel()

    def repeated(self) -> str:
        """What came more than once."""
        events, reports = self._added - len(self.sums.seen), self._delivered - len(self.reported)
        return f"{self._retaken} jobs, {events} events, {reports} reports"


def table_of(sums: Sums, plain: bool) -> Table:
    """The packages with the most lines, and all of them together."""
    table = Table(box=None if plain else SIMPLE_HEAD, pad_edge=not plain)
    table.add_column("package")
    for heading in ("files", "lines", "functions", "classes"):
        table.add_column(heading, justify="right")
    ranked = sorted(sums.packages.items(), key=lambda item: (-item[1].lines, item[0]))
    total = sum((counts for _, counts in ranked), Counts())
    rest = sum((counts for _, counts in ranked[ROWS:]), Counts())
    rows = [*ranked[:ROWS], (f"{len(ranked[ROWS:])} more", rest)] if rest.files else ranked
    for name, counts in [*rows, ("all", total)]:
        table.add_row(name, *(f"{number:,}" for number in attrs.astuple(counts)))
    return table


async def indexed(
    opening: AbstractAsyncContextManager[Store], files: list[str], workers: int, console: Console
) -> tuple[Index, float]:
    """Run the index over a store; it and the seconds it took."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with opening as store:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("indexing", total=len(files))
            index = Index(store, files, console.print, partial(bar.advance, task))
            began = time.perf_counter()
            await index.run(workers)
            return index, time.perf_counter() - began


def main(arguments: list[str] | None = None) -> int:
    """Index, show, verify; 0 if every file is in the result exactly once."""
    parser = argparse.ArgumentParser(description="index the standard library")
    parser.add_argument("--store", default="memory:", help="URL of the store (default: %(default)s)")
    parser.add_argument("--loop", choices=("trio", "asyncio"), default="trio", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=4, help="handlers at once (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="only so many files, from all over the library")
    options = parser.parse_args(arguments)
    try:
        opening = open_store(options.store)
    except ValueError as error:
        parser.error(str(error))

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    files = library_files()
    if options.limit:
        files = files[:: max(1, len(files) // options.limit)][: options.limit]
    console.print(f"{len(files):,} files of {LIBRARY} on {options.store} ({options.loop})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, of the files that are parsed
        index, seconds = anyio.run(indexed, opening, files, options.workers, console, backend=options.loop)
        began = time.perf_counter()
        plain = sequential(files)
        plainly = time.perf_counter() - began

    console.print(table_of(index.sums, plain=not console.is_terminal))
    lines = sum(counts.lines for counts in index.sums.packages.values())
    console.print(f"{len(files) / seconds:,.0f} files/s, {lines / seconds:,.0f} lines/s in {seconds:.1f} s")
    console.print(f"a plain loop: {len(files) / plainly:,.0f} files/s in {plainly:.1f} s")
    console.print(f"delivered again: {index.repeated()}")
    if index.sums == plain and index.reported == plain.seen and not index.left:
        console.print("verified: every file is in the result exactly once")
        return 0
    console.print(f"WRONG: the index is not what a plain count gives ({index.left} jobs are left)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
