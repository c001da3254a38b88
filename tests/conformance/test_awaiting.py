"""The conformance suite on the wrapper that behaves like the engines to come."""

import pytest

from alkstore_trio.testing.conformance import *

from ..awaiting import open_awaiting


@pytest.fixture(params=[Case("awaiting", open_awaiting)], ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param
