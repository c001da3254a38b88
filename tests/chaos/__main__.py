"""Have stores disturbed while many use them, and judge by the history: ``python -m tests.chaos --engine sqlite``.

The faults follow from ``--seed``; how the processes interleave does not, so a violation may take several runs to come
again. Exits with 1 if there was one, and says which, and where the history is.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio

from .actors import INTERVALS, LEASE
from .checker import History, violations
from .grounds import GROUNDS
from .history import load
from .plan import ENGINES, Engine, Fault, plan

_CALM = 18.0  # seconds at the end: more than a standby takes to lead after a crash
_SHOWN = 40  # violations


async def run(engine: Engine, seconds: float, seed: int, folder: Path) -> History:
    """Disturb stores for so many seconds."""
    async with GROUNDS[engine](folder, seed) as ground:
        began = anyio.current_time()

        async def befall(fault: Fault) -> None:
            print(f"{anyio.current_time() - began:6.2f} s  {fault.kind}", flush=True)
            await ground.befall(fault)

        async with anyio.create_task_group() as faults:
            for fault in plan(engine, seconds - _CALM, seed):
                await anyio.sleep_until(began + fault.at)
                faults.start_soon(befall, fault)
        ground.heal()
        calm = time.monotonic()
        await anyio.sleep(_CALM)
        left = await ground.left()
    intervals = {name: float(interval) for name, interval in INTERVALS.items()}
    return History(load(folder), left, ground.boundaries, intervals, LEASE, ground.actors, calm, ground.crashed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--loop", choices=["trio", "asyncio"], default="trio")
    options = parser.parse_args()
    if options.seconds <= _CALM:
        parser.error(f"--seconds must be more than the {_CALM:g} of calm that each run ends with")
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"{options.engine}, {options.seconds:g} s, seed {options.seed}, in {folder}")
    history = anyio.run(run, options.engine, options.seconds, options.seed, folder, backend=options.loop)
    for (verb, outcome), times in sorted(Counter((call.verb, call.outcome) for call in history.calls).items()):
        print(f"{times:8} {verb} {outcome}")
    found = violations(history)
    print("\n".join(found[:_SHOWN]), f"{len(found)} violations", sep="\n")
    if found:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
