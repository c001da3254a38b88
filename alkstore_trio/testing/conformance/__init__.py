"""The suite that every engine must pass, under both loops.

A test module of an engine is the star import and one fixture::

    from alkstore_trio.testing.conformance import *

    @pytest.fixture
    def case() -> Case:
        return Case("mine", open_mine)

Call ``pytest.register_assert_rewrite("alkstore_trio.testing.conformance")`` in a conftest for readable failures.
"""

import pytest

from .arguments import *
from .cancellation import *
from .clocks import *
from .kit import *
from .lifecycle import *
from .locks import *
from .notify import *
from .odd import *
from .outbox import *
from .queues import *
from .scheduler import *
from .seam import *
from .streams import *
from .workers import *

pytestmark: pytest.MarkDecorator = pytest.mark.anyio
