"""What stands under a store: units that do ops, engines that open them, and what an engine may differ in.

A *unit* is a place where an op takes effect: an engine commits at once, an open transaction later. The checkpoint
belongs to the unit: one per op, before its effect and before its clock reading, none after it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from ._ops import Op

if TYPE_CHECKING:
    from ._wake import Hub

__all__ = ["Engine", "JoinedUnit", "Traits", "TxUnit", "Unit"]

A = TypeVar("A")


@attrs.frozen
class Traits:
    """What an engine may differ in. Consumer code never asks; the conformance suite does."""

    counts_wakes: bool  #: one wake per notify, while the listener's buffer has room
    discarded_ids_are_gaps: bool  #: the number of a discarded effect is never given out again
    serializes_publishers: bool  #: a publish waits for an open transaction that published to the stream
    serializes_writers: bool  #: any write waits for an open transaction that holds the writer
    notify_limit: int | None  #: bytes of a notify payload; None: no limit
    has_sql: bool  #: `Tx.execute` and `Store.join` work
    durable: bool  #: a returned write survives the process
    many_processes: bool  #: several stores share one state
    clock_is_local: bool  #: without ``clock=`` the host's clock decides


class Unit(Protocol):
    """A place where an op takes effect."""

    @property
    def engine(self) -> "Engine":
        """The engine that the effect ends in."""
        ...

    async def do(self, op: Op[A]) -> A:
        """Pass a checkpoint, read the clock, do the op, wake whom it concerns, answer."""
        ...

    async def idle(self) -> None:
        """What is left of a verb that touches nothing: `Closed` on a closed store, and a checkpoint."""
        ...


class TxUnit(Unit, Protocol):
    """An open transaction. Dropped without an end, it is discarded."""

    async def commit(self) -> None:
        """Merge all effects at once, then fire their wakes."""
        ...

    async def rollback(self) -> None:
        """Discard all effects. Never waits for anybody."""
        ...

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run the caller's own statement; ``RuntimeError`` on an engine without SQL."""
        ...


class JoinedUnit(Unit, Protocol):
    """An application's own transaction. Over a synchronous connection it never awaits, and needs no loop."""

    awaits: bool  #: whether its connection is an asynchronous one

    def wake(self) -> None:
        """The application has committed: wake whom its effects concern, as far as that is not done by itself."""
        ...


class Engine(Unit, Protocol):
    """A unit that commits at once, and what a store needs beside it."""

    traits: Traits
    hub: "Hub"  #: carries wakes; the engine fires it after each commit
    checkpoint: Callable[[], Awaitable[object]]  #: a cancellation point; lets others run when a turn is over
    sleep: Callable[[float], Awaitable[object]] | None  #: the given clock's own sleep, where it has one
    prefetch: int  #: jobs that a worker claims ahead unless told otherwise

    def check_open(self) -> None:
        """Raise `Closed` once the engine is closed."""
        ...

    async def begin(self) -> TxUnit:
        """Pass a checkpoint and open a transaction."""
        ...

    def join(self, connection: object) -> JoinedUnit:
        """The transaction that the caller holds on a connection; ``RuntimeError`` on an engine without SQL."""
        ...

    async def aclose(self) -> None:
        """Close, ending every receiver; a second call does nothing."""
        ...
