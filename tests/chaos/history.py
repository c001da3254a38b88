"""What a run has recorded: who asked what, when, and what came of it.

A call is written down before it is made and after it has ended, in lines that a kill a moment later does not take back.
One whose end is missing may have done its work or not, and so may one that ended in `CommitUnknown`. Whatever else was
raised, a cancellation included, says that it did nothing.
"""

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import attrs

from alkstore_trio import CommitUnknown, DatabaseError
from alkstore_trio._waiting import passes

__all__ = ["Call", "Outcome", "Recorder", "load"]

Outcome = Literal["returned", "nothing", "unknown"]


@attrs.frozen
class Call:
    """A verb that was asked for. Times are the host's monotonic ones, which all its processes share."""

    who: str
    verb: str
    asked: dict[str, Any]
    began: float
    ended: float = math.inf
    outcome: Outcome = "unknown"
    answer: Any = None

    @property
    def may_stand(self) -> bool:
        """Whether it has done its work, or perhaps."""
        return self.outcome != "nothing"


@attrs.define(eq=False)
class _Answer:
    answer: Any = None


class Recorder:
    """Writes what one process does to a file of its own, or to whoever writes it there."""

    def __init__(self, name: str, file: int) -> None:
        self.name = name
        self._file = file
        self._numbers = count()

    @contextmanager
    def call(self, task: str, verb: str, **asked: Any) -> Iterator[_Answer]:
        """Record a verb; its ``answer`` is what the block sets."""
        number = next(self._numbers)
        self._write(n=number, who=f"{self.name} {task}", verb=verb, asked=asked)
        given = _Answer()
        outcome: Outcome = "nothing"
        try:
            yield given
            outcome = "returned"
        except CommitUnknown:
            outcome = "unknown"
            raise
        finally:
            self._write(n=number, outcome=outcome, answer=given.answer)

    def note(self, task: str, verb: str, answer: Any) -> None:
        """Record what was seen at one instant."""
        self._write(n=next(self._numbers), who=f"{self.name} {task}", verb=verb, outcome="returned", answer=answer)

    def failure(self, task: str, error: DatabaseError) -> None:
        """Record that a task has failed, and whether its error says that this passes."""
        self.note(task, "failed", {"error": f"{error!r} from {error.__cause__!r}", "passes": passes(error)})

    def _write(self, **fields: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic(), **fields}).encode() + b"\n")


def load(folder: Path) -> list[Call]:
    """What all recorders of a folder have written, by the time it began."""
    calls: list[Call] = []
    for file in sorted(folder.glob("*.jsonl")):
        begun: dict[int, Call] = {}
        for line in file.read_text().splitlines():  # whole ones, since each was written at once
            fields = json.loads(line)
            if "verb" in fields:
                call = Call(fields["who"], fields["verb"], fields.get("asked", {}), fields["at"])
            else:
                call = begun[fields["n"]]
            if "outcome" in fields:
                call = attrs.evolve(call, ended=fields["at"], outcome=fields["outcome"], answer=fields["answer"])
            begun[fields["n"]] = call
        calls += begun.values()
    return sorted(calls, key=lambda call: call.began)
