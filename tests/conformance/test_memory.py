"""The conformance suite on the memory engine."""

import pytest

from alkstore_trio import _loop, open_memory
from alkstore_trio.testing.conformance import *


@pytest.fixture(params=[Case("memory", open_memory)], ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture  # type: ignore[no-redef]  # overrides the suite's
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that is over at once: every checkpoint suspends."""
    monkeypatch.setattr(_loop, "TURN", 0.0)
