"""Each benchmark runs once at a tiny size, so that none can rot. What they measure is nobody's business here."""

import gc
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.bench import harness

ROWS = {
    "backlog": ["200 pending / 20 pending"],
    "fairness": ["trio", "asyncio"],
    "jobs": ["one / reference", "batch / reference", "one on asyncio / one", "batch on asyncio / batch"],
    "memory": ["plain", "delayed", "expiring"],
    "peers": ["alkstore on trio", "alkstore on asyncio"],
    "postgres": [
        "psycopg's enqueue / enqueue",
        "bare loop / run_worker",
        "64 tasks, each alone / 64 tasks",
        "32 writers, telling nobody / 32 writers",
        "2,000 pending / 200 pending",
        "notify / psycopg's LISTEN",
        "statements",
    ],
    "sqlite": [
        "1 task / floor",
        "64 tasks, each alone / 64 tasks",
        "batches / floor, 100 a transaction",
        "stream / raw",
    ],
    "streams": ["stream / list", "subscriber / list"],
    "transactions": ["in transactions of 10 / auto-committed", "in one of 100 / auto-committed"],
    "wakes": ["notify / trio.Event"],
}


def test_no_benchmark_is_left_out() -> None:
    scripts = {path.stem for path in (Path(__file__).parent / "bench").glob("*.py")}
    assert scripts - {"harness", "postgres_peers", "reference"} == ROWS.keys()


@pytest.mark.parametrize("script", ROWS)
def test_a_benchmark_prints_its_rows(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is measured, so no turn needs a clean start; and the harness would give back what conftest set aside.
    monkeypatch.setattr(harness, "gc", Mock(spec=gc))
    import_module(f"tests.bench.{script}").main(quick=True)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for row in ROWS[script]:
        assert any(line.startswith(f"{row} ") for line in printed), row
