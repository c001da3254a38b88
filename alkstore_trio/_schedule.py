"""Schedules: registering, forgetting and listing them. Nothing fires without a runner."""

from typing import Any

from ._engine import Engine
from ._ops import AddSchedule, RemoveSchedule, Schedules
from ._rules import bounds, names
from ._rules.bounds import Seconds
from ._rules.payload import encode
from ._rules.spec import interval
from ._values import Schedule, ScheduleOptions, ScheduleState

__all__ = ["add", "listed", "remove"]


async def add(
    engine: Engine,
    name: str,
    spec: str,
    queue: str,
    payload: Any,
    priority: int,
    expires: Seconds | None,
    max_attempts: int | None,
) -> Schedule:
    """Register a schedule by name, replacing one that is there; an unchanged interval keeps its grid."""
    name, queue = names.shared(name), names.shared(queue)
    seconds = interval(spec)
    body = encode(payload)
    options = ScheduleOptions(
        bounds.stored(priority, "priority"),
        None if expires is None else bounds.span(expires, "expires"),
        None if max_attempts is None else bounds.at_least(1, max_attempts, "max_attempts"),
    )
    await engine.do(AddSchedule(name, spec, seconds, queue, body, options))
    return Schedule(name, spec, queue, options)


async def remove(engine: Engine, name: str) -> bool:
    """Forget a schedule; whether there was one."""
    return await engine.do(RemoveSchedule(names.shared(name)))


async def listed(engine: Engine) -> list[ScheduleState]:
    """All schedules, by name."""
    return await engine.do(Schedules())
