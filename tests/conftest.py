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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--wakes",
        choices=["dropped", "spurious"],
        help="run the conformance suite with the library's own wakes dropped, or with more of them",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: the tests wait for disks and servers for a third of their time."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """A Postgres server."""
    with running() as where:
        yield where


def pytest_collection_finish() -> None:
    """Set aside what all the tests together are, half a second's reading for the collector each time it comes by."""
    gc.collect()
    gc.freeze()
