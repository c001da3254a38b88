"""Every example runs, under both loops where it applies, and prints what it says it does."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
MAIN_JOB = EXAMPLES / "index_stdlib.py"

PRINTED = {
    "anyio_app": """
        reader: 1200 visitors
        replicas: made it, found it, found it
    """,
    "outbox_heartbeat": """
        attempt 1: film.mkv from part 1
        attempt 2: film.mkv from part 3
        delivered [0, 1, 2, 3, 4, 5]
        left to deliver: 0
    """,
    "scheduler_standby": """
        first leads
        cleaning /tmp: job 1
        cleaning /tmp: job 2
        first stopped
        second leads
        cleaning /tmp: job 3
        second stopped
    """,
    "stream_consumer": """
        order 1
        order 2
        order 3
        power cut; again from 2
        order 3
        order 4
        order 5
        invoices: [1, 2, 3, 4, 5]
        trimmed: 5
    """,
    "trio_app": """
        ordered: soup
        ordered: pasta
        ordered: salad
        ready: soup
        ready: pasta
        ready: salad
        takings: 19
    """,
    "worker_pool": """
        SIGTERM: finishing what runs
        finished: [1, 2, 3]
        left: 4 ready, 1 dead, 0 in nobody's hands
        dead: there is no page 0
    """,
}
ONLY_TRIO = {"trio_app"}  # it hosts its tasks in a trio nursery
RUNS = [(name, loop) for name in PRINTED for loop in ("trio", "asyncio") if loop == "trio" or name not in ONLY_TRIO]


def load(path: Path) -> dict[str, Any]:
    """The names of an example, which is not started."""
    return runpy.run_path(str(path), run_name="example")


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("name", "loop"), RUNS)
def test_an_example_prints_what_it_is_there_to_show(name: str, loop: str, capsys: pytest.CaptureFixture[str]) -> None:
    anyio.run(load(EXAMPLES / f"{name}.py")["main"], backend=loop)
    assert lines(capsys.readouterr().out) == lines(PRINTED[name])


def test_every_example_is_tested_here_and_is_short() -> None:
    examples = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py") if path != MAIN_JOB}
    assert examples.keys() == PRINTED.keys()
    assert {name for name, text in examples.items() if len(text.splitlines()) >= 120} == set()


def test_an_example_starts_as_a_program() -> None:
    run = subprocess.run([sys.executable, str(EXAMPLES / "trio_app.py")], capture_output=True, text=True, check=True)
    assert lines(run.stdout) == lines(PRINTED["trio_app"])


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_the_main_job_indexes_every_file_once_and_recovers_what_was_abandoned(loop: str) -> None:
    command = [sys.executable, str(MAIN_JOB), "--limit", "40", "--loop", loop]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    printed = lines(run.stdout)
    assert printed[0].startswith("40 files of ")
    abandoned = next(line for line in printed if line.startswith("abandoning "))
    claims = int(abandoned.split()[1])
    assert claims > 1
    again = next(line for line in printed if line.startswith("delivered again: ")).removeprefix("delivered again: ")
    jobs, events, reports = (int(part.split()[0]) for part in again.split(", "))
    assert jobs >= claims
    assert min(events, reports) >= claims // 2
    assert printed[-1] == "verified: every file is in the result exactly once"
    assert run.stderr == ""


def test_the_main_job_says_where_its_index_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = load(MAIN_JOB)
    plain: Callable[[list[str]], Any] = job["sequential"]
    monkeypatch.setitem(job["main"].__globals__, "sequential", lambda files: plain(files[1:]))
    assert job["main"](["--limit", "4"]) == 1
    assert lines(capsys.readouterr().out)[-1].startswith("WRONG:")


def test_the_main_job_ends_with_a_failure_when_a_file_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = load(MAIN_JOB)
    names = job["main"].__globals__
    plain = job["sequential"](job["library_files"]()[:4])

    def broken(file: str) -> None:
        raise OSError(file)

    monkeypatch.setitem(names, "count", broken)
    monkeypatch.setitem(names, "sequential", lambda files: plain)
    assert job["main"](["--limit", "4"]) == 1
    assert lines(capsys.readouterr().out)[-1] == "WRONG: the index is not what a plain count gives (4 jobs are left)"


def test_the_main_job_refuses_a_store_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        load(MAIN_JOB)["main"](["--store", "nonsense://"])
    assert refused.value.code == 2
    assert "unknown scheme 'nonsense'" in capsys.readouterr().err
