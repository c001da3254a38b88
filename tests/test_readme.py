"""Every python block of the README runs under both loops and prints what its comments say."""

import ast
import inspect
import re
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest

from alkstore_trio import open_memory

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOOPS = ("trio", "asyncio")

# How the README says that its first example becomes one for asyncio.
ON_ASYNCIO = {
    "import trio": "import anyio",
    "trio.open_nursery": "anyio.create_task_group",
    "trio.run": "anyio.run",
}


def blocks(*languages: str) -> list[str]:
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


PROGRAM, *SNIPPETS = blocks("python")
TITLES = [snippet.strip().splitlines()[0] for snippet in SNIPPETS]


def expected(block: str) -> list[str]:
    """What the block prints, by the comments beside its prints."""
    prints = [line for line in block.splitlines() if re.search(r"\bprint\(", line)]
    assert all("  # " in line for line in prints), "a print without its output beside it"
    return [line.rpartition("  # ")[2] for line in prints]


async def run_snippet(snippet: str, **names: object) -> None:
    code = compile(snippet, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with open_memory() as store:
        running = eval(code, {"store": store, **names})
        assert inspect.iscoroutine(running), "a snippet that awaits nothing"
        await running


@pytest.mark.parametrize("loop", LOOPS)
def test_the_first_example_is_a_program_that_prints_what_it_says(loop: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAM
    if loop == "asyncio":
        for ours, theirs in ON_ASYNCIO.items():
            assert ours in program
            program = program.replace(ours, theirs)
        assert "trio." not in program
    exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == expected(PROGRAM)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("snippet", SNIPPETS, ids=TITLES)
def test_a_snippet_prints_what_it_says(
    snippet: str, loop: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    names = {}
    if "dsn" in snippet:
        names["dsn"] = dsn = request.getfixturevalue("dsn")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("drop schema if exists shop cascade; drop table if exists sent")
    anyio.run(partial(run_snippet, snippet, **names), backend=loop)
    assert capsys.readouterr().out.splitlines() == expected(snippet)
    assert expected(snippet)


def test_every_verb_of_a_store_that_the_tour_promises_is_in_it() -> None:
    tour = "".join(SNIPPETS)
    for verb in ("listen", "notify", "stream", "queue", "try_lock", "hold_lock", "outbox", "schedule", "run_schedules"):
        assert f"store.{verb}" in tour
    for form in ("store.transaction(", "store.begin_tx(", ".run_worker", ".subscribe("):
        assert form in tour


def test_the_first_two_shell_blocks_run_the_main_job_and_the_tests() -> None:
    main_job, tests = blocks("sh", "bash", "console", "shell")
    assert main_job.rstrip().endswith("examples/index_stdlib.py")
    assert tests.rstrip().endswith("-m pytest -n auto --dist worksteal")


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    anchors = {
        re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))
        for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    }
    missing = [link for link in links if not (link[1:] in anchors if link[0] == "#" else (ROOT / link).exists())]
    assert links
    assert missing == []
