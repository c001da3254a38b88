"""What a test of an application needs: clocks to step, a scheduler to tick by hand, a queue to drain.

Importable without pytest. The fixtures are in `alkstore_trio.testing.fixtures`, the suite that every engine must pass
in `alkstore_trio.testing.conformance`.
"""

from ._clocks import LoopClock as LoopClock
from ._clocks import ManualClock as ManualClock
from ._drive import drain as drain
from ._drive import hold_lease as hold_lease
from ._drive import tick as tick

__all__ = ["LoopClock", "ManualClock", "drain", "hold_lease", "tick"]
