import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from .servers import running

pytest.register_assert_rewrite("alkstore_trio.testing.conformance", "tests.engines.children", "tests.engines.joining")

# The suite is the same at each run; `--hypothesis-profile=default` goes looking for more, `=long` for much more.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("long", max_examples=10_000, deadline=None)
settings.load_profile("suite")


# A worker of several keeps to a core: there its threads hand over to each other soonest, and the others are not idle.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--wakes",
        choices=["dropped", "spurious"],
        help="run the conformance suite with the library's own wakes dropped, or with more of them",
    )


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """A Postgres server."""
    with running() as where:
        yield where


def pytest_collection_finish() -> None:
    """Set aside what all the tests together are, half a second's reading for the collector each time it comes by."""
    gc.collect()
    gc.freeze()
