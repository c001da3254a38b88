"""Each benchmark runs once at a tiny size, so that none can rot. What they measure is nobody's business here."""

from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = sorted(
    path.stem for path in (Path(__file__).parent / "bench").glob("*.py") if path.stem not in ("harness", "reference")
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_runs_and_prints_its_rows(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    import_module(f"tests.bench.{script}").main(quick=True)
    titles = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")]
    assert titles
