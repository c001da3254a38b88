"""What befalls a run, and when: drawn from a seed, so that it can be had again."""

from random import Random
from typing import Literal

import attrs

__all__ = ["ENGINES", "Engine", "Fault", "Kind", "plan"]

Engine = Literal["memory", "sqlite", "postgres"]
ENGINES: tuple[Engine, ...] = ("memory", "sqlite", "postgres")

Kind = Literal[
    "kill",  # a process, or on memory the tasks that stand for one
    "stop",  # a process, for a while
    "step",  # the clock that decides, or on Postgres a host's, which must not
    "drop wakes",
    "spurious wakes",
    "no space",  # in the file, for a while
    "cut",  # all connections
    "half-open",  # all connections, for a while
    "stall",  # all connections, for a while
    "terminate",  # a session at the server
    "restart",  # of the server, as after a crash
]

_EVERY = 1.0  # seconds between two faults, on average
_STEPS = (-3_600.0, -30.0, -2.0, -0.5, 0.5, 2.0, 30.0, 3_600.0)
_WEIGHTS: dict[Engine, dict[Kind, int]] = {
    "memory": {"kill": 4, "step": 3, "drop wakes": 1, "spurious wakes": 1},
    "sqlite": {"kill": 5, "stop": 3, "step": 3, "drop wakes": 1, "spurious wakes": 1, "no space": 2},
    "postgres": {
        "kill": 4,
        "stop": 2,
        "step": 1,
        "drop wakes": 1,
        "spurious wakes": 1,
        "cut": 3,
        "half-open": 1,
        "stall": 2,
        "terminate": 3,
        "restart": 2,
    },
}
_LASTS: dict[Kind, tuple[float, float]] = {
    "stop": (0.2, 4.0),
    "drop wakes": (1.0, 5.0),
    "spurious wakes": (1.0, 3.0),
    "no space": (0.1, 1.0),
    "half-open": (0.5, 3.0),
    "stall": (0.1, 2.0),
    "restart": (0.0, 1.5),  # between its end and its start
}


@attrs.frozen
class Fault:
    """Something that befalls a run ``at`` so many seconds, and what is needed to carry it out."""

    at: float
    kind: Kind
    target: int  # which process or session, modulo how many there are
    lasts: float = 0.0  # seconds
    seconds: float = 0.0  # of a step


def plan(engine: Engine, seconds: float, seed: int) -> list[Fault]:
    """The faults of so many seconds."""
    chance = Random(f"{engine} {seed}")
    weights = _WEIGHTS[engine]
    faults: list[Fault] = []
    at = chance.expovariate(1 / _EVERY)
    while at < seconds:
        [kind] = chance.choices(list(weights), list(weights.values()))
        lasts = min(chance.uniform(*_LASTS.get(kind, (0.0, 0.0))), seconds - at)
        step = chance.choice(_STEPS) if kind == "step" else 0.0
        faults.append(Fault(at, kind, chance.randrange(1_000), lasts, step))
        at += chance.expovariate(1 / _EVERY)
    return faults
