"""Deliberate mistakes, one by one, each in a copy of the tree, and whether the tests that ought to catch it do.

Run by hand, from the root of the tree: ``python -m tests.mutants [--only TEXT] [--list]``. First the tests that are to
catch something must all pass on the code as it is. Nothing here ever changes the tree itself.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from tests.folders import FOLDER
from tests.servers import GIVEN, running

__all__ = ["MUTANTS", "PACKAGE", "Mutant"]

_ROOT = Path(__file__).parent.parent
PACKAGE = _ROOT / "alkstore_trio"

_COPIED = ("alkstore_trio", "tests", "pyproject.toml")
_AT_A_TIME = 2
_CHUNK = 40  # tests that are asked at once of the code as it is, so that they keep the bound
_HANGS = 25  # seconds after which a test hangs: some times what any of them takes
_BOUND = 150.0  # the same of a run that hangs outside a test
_FIRST = re.compile(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", re.MULTILINE)
_BEGUN = re.compile(r"^tests/(\S+::\S.*?) ?(?:Timeout .*)?$", re.MULTILINE)  # and not ended


@attrs.frozen
class Mutant:
    """A mistake: what it comes to, where it is made, and the tests that see it."""

    name: str
    file: str  # within the package
    old: str  # occurs there once
    new: str
    tests: str  # files and node ids within ``tests/``, apart by blanks


def _pytest(folder: str, tests: Sequence[str], *options: str) -> tuple[int | None, str]:
    """The exit status of a run in a copy of the tree, ``None`` for one that hangs, and what it printed."""
    command = [sys.executable, "-m", "pytest", "-v", "--tb=no", "-p", "no:cacheprovider", *options]
    command += ["-o", f"faulthandler_timeout={_HANGS}", "-o", "faulthandler_exit_on_timeout=true"]  # of pytest 9
    environment = os.environ | {"PYTHONPATH": folder}  # whatever a test starts imports the copy too
    with subprocess.Popen(
        [*command, *(f"tests/{test}" for test in tests)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=_BOUND)
            return process.returncode, printed
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _copy() -> Iterator[str]:
    """A copy of what the tests of the library need."""
    with TemporaryDirectory(prefix="mutant-", dir=FOLDER) as folder:
        for name in _COPIED:
            source = _ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(folder, name))
            else:
                shutil.copy2(source, folder)
        yield folder


def _judged(mutant: Mutant) -> tuple[bool, str]:
    """Whether a mutant is caught, and the verdict in words."""
    with _copy() as folder:
        path = Path(folder, "alkstore_trio", mutant.file)
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return False, f"DOES NOT APPLY: its text occurs {text.count(mutant.old)} times"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        status, printed = _pytest(folder, mutant.tests.split(), "-x")
    if status is None:
        return True, "caught: it hangs"
    if status == 0:
        return False, "SURVIVED"
    if status == 1 and (failed := _FIRST.search(printed)):
        return True, f"caught: {failed[1]}"
    if status == 1 and "Timeout (" in printed:
        return True, f"caught: {_BEGUN.findall(printed)[-1]} hangs"
    return False, f"DID NOT RUN: pytest ended with {status}\n{printed}"  # a mistake in the mutant, or in its tests


def _all_pass(mutants: Sequence[Mutant]) -> bool:
    """Whether the tests pass on the code as it is: one that fails anyway would catch anything."""
    tests = sorted({test for mutant in mutants for test in mutant.tests.split()})
    with _copy() as folder:
        for start in range(0, len(tests), _CHUNK):
            status, printed = _pytest(folder, tests[start : start + _CHUNK], "-n", str(_AT_A_TIME))
            if status != 0:
                print(f"the code as it is: pytest ended with {status}\n{printed}")
                return False
    return True


def main() -> int:
    """Judge the mutants that are asked for; 1 if one of them is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="those whose name or file has it in it")
    parser.add_argument("--list", action="store_true", help="only name them")
    arguments = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if arguments.only in mutant.name or arguments.only in mutant.file]
    if not mutants:
        parser.error(f"no mutant has {arguments.only!r} in its name or file")
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.file}: {mutant.name}")
        return 0
    began = time.monotonic()
    with running() as dsn, ThreadPoolExecutor(_AT_A_TIME) as threads:
        os.environ[GIVEN] = dsn  # one server for all runs
        if not _all_pass(mutants):
            return 1
        caught = 0
        for mutant, (well, verdict) in zip(mutants, threads.map(_judged, mutants), strict=True):
            caught += well
            print(f"{mutant.file}: {mutant.name}\n    {verdict}", flush=True)
    print(f"{caught} of {len(mutants)} caught in {time.monotonic() - began:.0f} s")
    return caught != len(mutants)


MUTANTS = [
    # The rules
    Mutant(
        "a claim has lapsed at its deadline already",
        "_rules/queue.py",
        "claim_ends is not None and claim_ends >= now",
        "claim_ends is not None and claim_ends > now",
        "rules/test_queue.py::test_a_claim_is_valid_up_to_its_deadline_and_a_lapsed_one_is_like_an_unclaimed_row",
    ),
    Mutant(
        "a job expires after its instant, not at it",
        "_rules/queue.py",
        "row.expires_at <= now:",
        "row.expires_at < now:",
        "rules/test_queue.py::test_a_pending_row_is_expired_or_delayed_or_ready_or_spent",
    ),
    Mutant(
        "a job is due after its instant, not at it",
        "_rules/queue.py",
        "row.run_at > now and",
        "row.run_at >= now and",
        "rules/test_queue.py::test_a_pending_row_is_expired_or_delayed_or_ready_or_spent",
    ),
    Mutant(
        "a lapsed claim waits for its run_at again",
        "_rules/queue.py",
        "row.run_at > now and claim_ends is None",
        "row.run_at > now",
        "rules/test_queue.py::test_a_claim_is_valid_up_to_its_deadline_and_a_lapsed_one_is_like_an_unclaimed_row",
    ),
    Mutant(
        "a job has an attempt more than its stamp says",
        "_rules/queue.py",
        "READY if row.attempts < row.stamps",
        "READY if row.attempts <= row.stamps",
        "rules/test_queue.py::test_a_pending_row_is_expired_or_delayed_or_ready_or_spent",
    ),
    Mutant(
        "a retry gives an attempt more than the stamp says",
        "_rules/queue.py",
        "if row.attempts >= row.stamps.max_attempts:",
        "if row.attempts > row.stamps.max_attempts:",
        "rules/test_queue.py::test_a_retry_without_an_attempt_left_is_a_death",
    ),
    Mutant(
        "a claim keeps the token of the one before",
        "_rules/queue.py",
        "    row.token += 1\n",
        "    row.token = 1\n",
        "rules/test_queue.py::test_no_token_is_ever_given_twice_to_a_row",
    ),
    Mutant(
        "a later claim changes the row that its holder has",
        "_rules/queue.py",
        "    if row.token:\n",
        "    if False:\n",
        "rules/test_queue.py::test_a_row_that_was_claimed_once_is_left_to_its_holder_by_every_change",
    ),
    Mutant(
        "a claim spends no attempt",
        "_rules/queue.py",
        "    row.attempts += 1\n",
        "",
        "rules/test_queue.py::test_a_claim_takes_an_attempt_a_token_and_the_whole_timeout",
    ),
    Mutant(
        "a release keeps its attempt",
        "_rules/queue.py",
        "attempts=row.attempts - 1)",
        "attempts=row.attempts)",
        "rules/test_queue.py::test_a_release_refunds_the_attempt",
    ),
    Mutant(
        "a row that is pending again keeps its deadline",
        "_rules/queue.py",
        "state=PENDING, worker_id=None, claim_expires_at=None)",
        "state=PENDING, worker_id=None)",
        "rules/test_queue.py::test_a_release_refunds_the_attempt rules/test_queue.py::test_a_retry_waits_as_told",
    ),
    Mutant(
        "a revived row expires as it would have",
        "_rules/queue.py",
        "run_at=now, expires_at=None,",
        "run_at=now,",
        "rules/test_queue.py::test_a_revived_row_is_as_if_new_but_for_its_birth",
    ),
    Mutant(
        "a run_at wins over a delay",
        "_rules/queue.py",
        "return shifted(now, delay) if delay is not None else now if run_at is None else run_at",
        "return run_at if run_at is not None else now if delay is None else shifted(now, delay)",
        "rules/test_queue.py::test_a_new_row_is_ready_now_or_when_asked_and_a_delay_wins",
    ),
    Mutant(
        "an error text is a character too long",
        "_rules/queue.py",
        "_LONGEST_ERROR = 8_192",
        "_LONGEST_ERROR = 8_193",
        "rules/test_queue.py::test_an_error_text_is_what_every_engine_can_store",
    ),
    Mutant(
        "a retention counts from the birth of a job",
        "_rules/queue.py",
        "shifted(row.died_at, row.stamps",
        "shifted(row.created_at, row.stamps",
        "rules/test_queue.py::test_a_dead_row_is_kept_for_its_retention",
    ),
    Mutant(
        "a lease that a float cannot tell from now ends at once",
        "_rules/bounds.py",
        "if now < end <= LATEST:",
        "if now <= end <= LATEST:",
        "rules/test_bounds.py::test_the_end_of_a_lease_is_finite_and_later_than_now",
    ),
    Mutant(
        "what holds until an instant has ended at it",
        "_rules/bounds.py",
        "return math.nextafter(moment, math.inf) if moment < LATEST else moment",
        "return moment",
        "rules/test_bounds.py::test_after_is_the_next_float",
    ),
    Mutant(
        "a lease of no time is taken",
        "_rules/bounds.py",
        "if seconds <= 0:",
        "if seconds < 0:",
        "rules/test_bounds.py::test_a_lease_that_has_expired_at_once_is_refused",
    ),
    Mutant(
        "less than nothing is taken for nothing",
        "_rules/bounds.py",
        "    if seconds < 0:\n",
        "    if False:\n",
        "rules/test_bounds.py::test_less_than_nothing_is_refused",
    ),
    Mutant(
        "an instant may overflow",
        "_rules/bounds.py",
        "return min(max(now + seconds, -LATEST), LATEST)",
        "return now + seconds",
        "rules/test_bounds.py::test_a_shifted_instant_is_always_finite",
    ),
    Mutant(
        "an int of 65 bits is kept",
        "_rules/bounds.py",
        "LARGEST = 2**63 - 1",
        "LARGEST = 2**63",
        "rules/test_bounds.py::test_a_kept_int_beyond_64_bits_is_refused",
    ),
    Mutant(
        "the curve doubles an attempt early",
        "_rules/backoff.py",
        "min(attempts - 1, _STEEPEST)",
        "min(attempts, _STEEPEST)",
        "rules/test_backoff.py::test_every_attempt_of_ten_thousand_is_within_its_range",
    ),
    Mutant(
        "the jitter of the curve begins at nothing",
        "_rules/backoff.py",
        "return ceiling / 2 + ceiling / 2 * jitter",
        "return ceiling * jitter",
        "rules/test_backoff.py::test_every_attempt_of_ten_thousand_is_within_its_range",
    ),
    Mutant(
        "the curve passes a day",
        "_rules/backoff.py",
        "min(base_backoff * 2.0**doublings, _HIGHEST)",
        "base_backoff * 2.0**doublings",
        "rules/test_backoff.py::test_it_never_overflows_nor_passes_a_day",
    ),
    Mutant(
        "a tick makes up for a boundary too many",
        "_rules/ticks.py",
        "CATCH_UP = 64",
        "CATCH_UP = 65",
        "rules/test_ticks.py::test_each_missed_boundary_fires_once_and_64_at_most",
    ),
    Mutant(
        "a boundary fires after its instant, not at it",
        "_rules/ticks.py",
        "if next_at > now:",
        "if next_at >= now:",
        "rules/test_ticks.py::test_each_missed_boundary_fires_once_and_64_at_most",
    ),
    Mutant(
        "a registration starts a new grid each time",
        "_rules/ticks.py",
        "return next_at if interval == registered else first_boundary(now, registered)",
        "return first_boundary(now, registered)",
        "rules/test_ticks.py::test_an_unchanged_interval_keeps_its_grid_however_late",
    ),
    Mutant(
        "a changed interval keeps the old grid",
        "_rules/ticks.py",
        "return next_at if interval == registered else first_boundary(now, registered)",
        "return next_at",
        "rules/test_ticks.py::test_a_changed_interval_starts_a_new_grid",
    ),
    Mutant(
        "a difference that was rounded up fires a boundary that has not come",
        "_rules/ticks.py",
        "if shifted(next_at, steps * interval) > now:",
        "if False:",
        "rules/test_ticks.py::test_a_boundary_fires_at_its_float_and_not_at_the_one_before",
    ),
    Mutant(
        "a difference that was rounded down leaves the next boundary behind",
        "_rules/ticks.py",
        "    if following <= now:  # or down from one\n",
        "    if False:  # or down from one\n",
        "rules/test_ticks.py::test_a_boundary_fires_at_its_float_though_its_distance_is_rounded_down",
    ),
    Mutant(
        "a schedule of every nothing is taken",
        "_rules/spec.py",
        "if not 0 < seconds",
        "if not 0 <= seconds",
        "rules/test_spec.py::test_anything_else_is_refused_and_told",
    ),
    Mutant(
        "what follows a spec is ignored",
        "_rules/spec.py",
        "_EVERY.fullmatch(spec)",
        "_EVERY.match(spec)",
        "rules/test_spec.py::test_anything_else_is_refused_and_told",
    ),
    Mutant(
        "a name of 512 bytes is too long",
        "_rules/names.py",
        "if size > _LONGEST",
        "if size >= _LONGEST",
        "rules/test_names.py::test_a_name_is_taken_as_it_is",
    ),
    Mutant(
        "a name is measured in characters",
        "_rules/names.py",
        "            size = len(name.encode())\n",
        "            size = len(name.encode()[:0]) + len(name)\n",
        "rules/test_names.py::test_a_name_that_no_engine_takes_is_refused_and_told",
    ),
    Mutant(
        "a NaN is JSON",
        "_rules/payload.py",
        '":", ",", False, False, False)',
        '":", ",", False, False, True)',
        "rules/test_payload.py::test_what_json_cannot_carry_is_refused",
    ),
    Mutant(
        "a lone surrogate is JSON",
        "_rules/payload.py",
        "if not body.isascii():",
        "if False:",
        "rules/test_payload.py::test_what_json_cannot_carry_is_refused",
    ),
    # Ops, and the wakes that follow them
    Mutant(
        "an enqueue wakes nobody",
        "_ops.py",
        "    def wakes(self, ids: list[int], /)",
        "    def silent(self, ids: list[int], /)",
        "conformance/test_memory.py::test_an_idle_worker_wakes_for_an_enqueue",
    ),
    Mutant(
        "a publish wakes nobody",
        "_ops.py",
        "    def wakes(self, offsets: list[int], /)",
        "    def silent(self, offsets: list[int], /)",
        "conformance/test_memory.py::test_a_subscriber_replays_and_then_follows",
    ),
    Mutant(
        "a notify wakes nobody",
        "_ops.py",
        "    channel: str\n\n    def wakes(",
        "    channel: str\n\n    def silent(",
        "conformance/test_memory.py::test_a_notify_wakes_a_listener_with_its_channel_and_nothing_else",
    ),
    Mutant(
        "a retry wakes nobody",
        "_ops.py",
        "    jitter: float\n\n    def wakes(",
        "    jitter: float\n\n    def silent(",
        "conformance/test_memory.py::test_an_idle_worker_wakes_for_a_fire_a_retry_a_release_and_a_revival",
    ),
    Mutant(
        "a release wakes nobody",
        "_ops.py",
        "    claims: tuple[tuple[int, int], ...]\n    delay: float | None\n\n    def wakes(",
        "    claims: tuple[tuple[int, int], ...]\n    delay: float | None\n\n    def silent(",
        "conformance/test_memory.py::test_an_idle_worker_wakes_for_a_fire_a_retry_a_release_and_a_revival",
    ),
    Mutant(
        "a heartbeat that brings a deadline nearer wakes nobody",
        "_ops.py",
        "if landed and self.extend is not None else ()",
        "if False else ()",
        "conformance/test_memory.py::test_a_heartbeat_that_brings_a_deadline_nearer_wakes_a_worker_and_a_plain_one_does_not",
    ),
    Mutant(
        "a worker's own renewal wakes all workers",
        "_ops.py",
        "if landed and self.extend is not None else ()",
        "if landed else ()",
        "conformance/test_memory.py::test_a_heartbeat_that_brings_a_deadline_nearer_wakes_a_worker_and_a_plain_one_does_not",
    ),
    Mutant(
        "a revival wakes nobody",
        "_ops.py",
        "    def wakes(self, count: int, /)",
        "    def silent(self, count: int, /)",
        "conformance/test_memory.py::test_an_idle_worker_wakes_for_a_fire_a_retry_a_release_and_a_revival",
    ),
    Mutant(
        "a registration wakes no runner",
        "_ops.py",
        "return (names.SCHEDULE_WAKE,)",
        "return ()",
        "conformance/test_memory.py::test_an_idle_runner_wakes_at_once_for_a_schedule_that_is_added",
    ),
    Mutant(
        "a fire wakes nobody",
        "_ops.py",
        "if fired and fired.times else ()",
        "if False else ()",
        "conformance/test_memory.py::test_an_idle_worker_wakes_for_a_fire_a_retry_a_release_and_a_revival",
    ),
    Mutant(
        "a commit wakes queues before streams",
        "_ops.py",
        "return [*notified, *streams, *queues]",
        "return [*notified, *queues, *streams]",
        "conformance/test_memory.py::test_notifies_wake_first_in_stage_order_then_events_then_queues",
    ),
    Mutant(
        "the end of a transaction does not wake those from whom it held events back",
        "_ops.py",
        "streams = dict.fromkeys(map(names.stream_wake, uncovered))",
        "streams: dict[str, None] = {}",
        "conformance/test_memory.py::test_a_discard_wakes_the_subscriber_of_what_it_held_back",
    ),
    # Memory
    Mutant(
        "memory does not look at the token of a claim",
        "_engines/queue_table.py",
        "if row is not None and row.token == token and slot",
        "if row is not None and slot",
        "conformance/test_memory.py::test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "memory does not look at the deadline of a claim",
        "_engines/queue_table.py",
        "row.token == token and slot(row, now) is LEASED else None",
        "row.token == token else None",
        "conformance/test_memory.py::test_a_late_op_is_refused_and_the_row_is_as_it_was",
    ),
    Mutant(
        "memory lines up whatever comes last",
        "_engines/queue_table.py",
        "if last is None or last.run_at < first.run_at or (last.run_at == first.run_at and last.id < first.id):",
        "if True:",
        "conformance/test_memory.py::test_claims_go_by_priority_then_run_at_then_id",
    ),
    Mutant(
        "memory files new rows that expire as it does those that do not",
        "_engines/queue_table.py",
        "        if first.expires_at is None and slot(first, now) is READY:\n",
        "        if slot(first, now) is READY:\n",
        "conformance/test_memory.py::test_a_sweep_buries_what_expired_unclaimed_or_lapsed_and_nothing_else",
    ),
    Mutant(
        "memory's lanes go from the lowest priority up",
        "_engines/queue_table.py",
        "sorted(self._lanes, reverse=True)",
        "sorted(self._lanes)",
        "conformance/test_memory.py::test_claims_go_by_priority_then_run_at_then_id",
    ),
    Mutant(
        "memory's heap forgets the run_at",
        "_engines/queue_table.py",
        "heappush(self._heap, (-row.priority, row.run_at, row.id, row))",
        "heappush(self._heap, (-row.priority, -math.inf, row.id, row))",
        "conformance/test_memory.py::test_claims_go_by_priority_then_run_at_then_id "
        "conformance/test_memory.py::test_claims_go_in_order_over_fresh_and_lapsed_rows_alike",
    ),
    Mutant(
        "memory's heap takes the latest id first",
        "_engines/queue_table.py",
        "heappush(self._heap, (-row.priority, row.run_at, row.id, row))",
        "heappush(self._heap, (-row.priority, row.run_at, -row.id, row))",
        "conformance/test_memory.py::test_claims_go_by_priority_then_run_at_then_id "
        "conformance/test_memory.py::test_claims_go_in_order_over_fresh_and_lapsed_rows_alike",
    ),
    Mutant(
        "memory's heap waits for its lanes to be empty",
        "_engines/queue_table.py",
        "if heap and heap[0] < (-row.priority, row.run_at, row.id):",
        "if False:",
        "conformance/test_memory.py::test_claims_go_by_priority_then_run_at_then_id "
        "conformance/test_memory.py::test_claims_go_in_order_over_fresh_and_lapsed_rows_alike",
    ),
    Mutant(
        "memory makes a delayed job ready after its instant",
        "_engines/queue_table.py",
        "while self._delayed.head() <= now:",
        "while self._delayed.head() < now:",
        "conformance/test_memory.py::test_a_row_is_claimable_from_its_run_at_on",
    ),
    Mutant(
        "memory lets a job be claimed at its expiry",
        "_engines/queue_table.py",
        "while self._expiries.head() <= now:",
        "while self._expiries.head() < now:",
        "conformance/test_memory.py::test_a_row_is_claimable_until_just_before_it_expires",
    ),
    Mutant(
        "memory keeps a dead row at the end of its retention",
        "_engines/queue_table.py",
        "while self._retention.head() <= now:",
        "while self._retention.head() < now:",
        "conformance/test_memory.py::test_a_dead_row_is_kept_for_its_retention",
    ),
    Mutant(
        "memory has a waiter look at the deadline, when the claim is still valid",
        "_engines/queue_table.py",
        "after(self._leases.head()))",
        "self._leases.head())",
        "conformance/test_memory.py::test_the_next_ready_instant_of_a_lease_is_the_float_after_its_deadline",
    ),
    Mutant(
        "memory's claims bury nobody",
        "_engines/queue_table.py",
        "        if self._spent:\n",
        "        if False:\n",
        "conformance/test_memory.py::test_a_lapsed_claim_without_attempts_dies_of_the_next_claim",
    ),
    Mutant(
        "memory lists the processing among the pending",
        "_engines/queue_table.py",
        "        self._processing += count - reclaimed\n",
        "        self._processing += count\n",
        "conformance/test_memory.py::test_statistics_count_rows_by_state_and_what_a_claim_would_take",
    ),
    Mutant(
        "memory gives ids again",
        "_engines/tables.py",
        "self._last_job = last = self._last_job + len(write.bodies)",
        "last = self._last_job + len(write.bodies)",
        "conformance/test_memory.py::test_ids_are_one_counter_of_the_store_that_begins_at_one",
    ),
    Mutant(
        "memory gives the offsets of trimmed events again",
        "_engines/tables.py",
        "        first = table.last + 1\n        table.last = last = table.last + len(write.bodies)\n",
        "        first = (table.events[-1].offset if table.events else 0) + 1\n"
        "        table.last = last = first - 1 + len(write.bodies)\n",
        "conformance/test_memory.py::test_offsets_are_never_given_again_after_a_trim_and_saved_ones_stay",
    ),
    Mutant(
        "memory saves an offset that is no advance",
        "_engines/tables.py",
        "if op.offset <= self.saved(op.stream, op.consumer):",
        "if op.offset < self.saved(op.stream, op.consumer):",
        "conformance/test_memory.py::test_a_saved_offset_never_goes_back",
    ),
    Mutant(
        "memory lets a saved offset go back",
        "_engines/tables.py",
        "if op.offset <= self.saved(op.stream, op.consumer):",
        "if op.offset == self.saved(op.stream, op.consumer):",
        "conformance/test_memory.py::test_a_saved_offset_never_goes_back "
        "conformance/test_memory.py::test_the_merge_of_two_saves_keeps_the_greater",
    ),
    Mutant(
        "memory shows events above those that may still be committed",
        "_engines/tables.py",
        "        return self.up_to(min(held_back) - 1) if held_back else len(self.events)\n",
        "        return len(self.events)\n",
        "conformance/test_memory.py::test_a_reader_that_saves_what_it_read_misses_nothing_of_concurrent_transactions",
    ),
    Mutant(
        "memory holds a transaction's own events back from it",
        "_engines/tables.py",
        "for key, first in self.staged.items() if key != reader]",
        "for key, first in self.staged.items()]",
        "conformance/test_memory.py::test_a_transaction_sees_its_own_events_but_none_above_those_of_another "
        "conformance/test_memory.py::test_a_transaction_sees_its_own_events_after_the_committed_ones_and_nobody_else_does",
    ),
    Mutant(
        "memory trims what nobody may see yet",
        "_engines/tables.py",
        "end = min(table.up_to(op.horizon), table.visible())",
        "end = table.up_to(op.horizon)",
        "conformance/test_memory.py::test_a_commit_wakes_the_subscriber_of_what_it_held_back",
    ),
    Mutant(
        "memory keeps the event at a trim's horizon",
        "_engines/tables.py",
        "end = min(table.up_to(op.horizon)",
        "end = min(table.up_to(op.horizon - 1)",
        "conformance/test_memory.py::test_a_trim_deletes_up_to_its_horizon_and_that_too",
    ),
    Mutant(
        "memory reads the event at an offset again",
        "_engines/tables.py",
        "start = self.up_to(offset)",
        "start = self.up_to(offset - 1)",
        "conformance/test_memory.py::test_a_read_gives_what_is_greater_than_its_offset_and_no_more_than_its_limit",
    ),
    Mutant(
        "memory searches a stream as if nothing had been trimmed",
        "_engines/tables.py",
        "count - max(self.last - offset, 0), 0)",
        "offset, 0)",
        "conformance/test_memory.py::test_offsets_are_never_given_again_after_a_trim_and_saved_ones_stay",
    ),
    Mutant(
        "memory puts an event where its transaction committed",
        "_engines/tables.py",
        "if known and known[-1].offset > events[0].offset:",
        "if False:",
        "conformance/test_memory.py::test_a_reader_that_saves_what_it_read_misses_nothing_of_concurrent_transactions",
    ),
    Mutant(
        "memory tells nobody what the end of a transaction uncovers",
        "_engines/tables.py",
        "            if table.visible() > before:\n",
        "            if False:\n",
        "conformance/test_memory.py::test_a_discard_wakes_the_subscriber_of_what_it_held_back",
    ),
    Mutant(
        "memory holds a lock at its deadline",
        "_engines/tables.py",
        "if row is not None and row.expires_at > now:",
        "if row is not None and row.expires_at >= now:",
        "conformance/test_memory.py::test_a_hold_lapses_exactly_at_its_ttl",
    ),
    Mutant(
        "memory grants a lock that another owner holds",
        "_engines/tables.py",
        "return row.token if row.owner == op.owner else None",
        "return row.token",
        "conformance/test_memory.py::test_a_lock_is_held_until_it_is_released",
    ),
    Mutant(
        "memory renews a lock that has lapsed",
        "_engines/tables.py",
        "row.token != op.token or row.expires_at <= now:",
        "row.token != op.token:",
        "conformance/test_memory.py::test_a_renewal_at_or_past_expiry_is_false_though_nobody_took_the_lock",
    ),
    Mutant(
        "memory renews a lock at its deadline",
        "_engines/tables.py",
        "row.token != op.token or row.expires_at <= now:",
        "row.token != op.token or row.expires_at < now:",
        "conformance/test_memory.py::test_a_renewal_at_or_past_expiry_is_false_though_nobody_took_the_lock",
    ),
    Mutant(
        "memory renews the hold of somebody else",
        "_engines/tables.py",
        "if row is None or row.token != op.token or row.expires_at",
        "if row is None or row.expires_at",
        "conformance/test_memory.py::test_tokens_grow_with_each_new_hold_after_release_and_after_lapse "
        "conformance/test_memory.py::test_an_owner_that_asks_after_a_lapse_has_a_new_hold",
    ),
    Mutant(
        "memory releases the hold of somebody else",
        "_engines/tables.py",
        "        if row is None or row.token != op.token:\n",
        "        if row is None:\n",
        "conformance/test_memory.py::test_a_release_after_another_took_the_lock_is_false_and_leaves_it",
    ),
    Mutant(
        "memory's lock tokens do not grow",
        "_engines/tables.py",
        "        self._last_token += 1\n",
        "        self._last_token = 1\n",
        "conformance/test_memory.py::test_tokens_grow_with_each_new_hold_after_release_and_after_lapse",
    ),
    Mutant(
        "memory fires on a lease that has lapsed",
        "_engines/tables.py",
        "lease.token != op.token or lease.expires_at <= now:",
        "lease.token != op.token:",
        "conformance/test_memory.py::test_a_leader_that_stalls_past_its_lease_before_a_fire_fires_nothing",
    ),
    Mutant(
        "memory fires on the lease of another leader",
        "_engines/tables.py",
        "if lease is None or lease.token != op.token or",
        "if lease is None or",
        "conformance/test_memory.py::test_a_lease_that_another_took_meanwhile_fires_nothing",
    ),
    Mutant(
        "memory fires a schedule that has moved on",
        "_engines/tables.py",
        "if row is None or row.next_at != op.seen:",
        "if row is None:",
        "conformance/test_memory.py::test_a_schedule_that_changes_after_the_reading_does_not_fire_on_what_was_read",
    ),
    Mutant(
        "memory fires as of its own reading of the clock",
        "_engines/tables.py",
        "self.allocate_ids(work), op.at)",
        "self.allocate_ids(work), now)",
        "conformance/test_memory.py::test_a_leader_that_stalls_within_its_lease_fires_as_of_its_reading",
    ),
    Mutant(
        "memory fires by name alone",
        "_engines/tables.py",
        'due.sort(key=attrgetter("next_at", "name"))',
        'due.sort(key=attrgetter("name"))',
        "conformance/test_memory.py::test_schedules_fire_in_order_of_boundary_and_name_each_with_all_its_fires",
    ),
    Mutant(
        "memory finds a schedule due after its boundary, not at it",
        "_engines/tables.py",
        "            if row.next_at <= now\n",
        "            if row.next_at < now\n",
        "conformance/test_memory.py::test_nothing_fires_before_its_boundary_and_one_job_at_it",
    ),
    Mutant(
        "memory deletes a job under a valid claim",
        "_engines/tables.py",
        "if jobs.slot(row, now) is not LEASED]",
        "if row]",
        "conformance/test_memory.py::test_everything_but_a_live_claim_of_the_queue_is_deleted",
    ),
    Mutant(
        "a transaction does not read its own events",
        "_engines/overlay.py",
        "        if not own or limit == 0:\n",
        "        if True:\n",
        "conformance/test_memory.py::"
        "test_a_transaction_sees_its_own_events_after_the_committed_ones_and_nobody_else_does",
    ),
    Mutant(
        "a transaction reads its own events out of their order",
        "_engines/overlay.py",
        "return sorted([*committed, *own[start : start + limit]], key=_OFFSET)[:limit]",
        "return [*own[start : start + limit], *committed][:limit]",
        "conformance/test_memory.py::"
        "test_a_transaction_sees_its_own_events_after_the_committed_ones_and_nobody_else_does",
    ),
    Mutant(
        "a transaction does not read its own offsets",
        "_engines/overlay.py",
        "return max(self._offsets.get((stream, consumer), 0), committed)",
        "return committed",
        "conformance/test_memory.py::test_a_transaction_reads_from_the_offset_that_it_saved_and_nobody_else_does",
    ),
    Mutant(
        "a transaction reads its own offset though a greater one was saved",
        "_engines/overlay.py",
        "return max(self._offsets.get((stream, consumer), 0), committed)",
        "return self._offsets.get((stream, consumer), committed)",
        "conformance/test_memory.py::test_the_merge_of_two_saves_keeps_the_greater "
        "conformance/test_memory.py::test_a_staged_offset_never_goes_back",
    ),
    Mutant(
        "a staged offset goes back",
        "_engines/overlay.py",
        "self._offsets[stream, consumer] = max(reached, offset)",
        "self._offsets[stream, consumer] = offset",
        "conformance/test_memory.py::test_a_staged_offset_never_goes_back",
    ),
    Mutant(
        "a transaction sees the job of another queue",
        "_engines/overlay.py",
        "return row if row is not None and row.queue == queue else None",
        "return row",
        "conformance/test_memory.py::test_a_transaction_sees_its_own_jobs_and_nobody_else_does",
    ),
    Mutant(
        "memory does not merge the staged jobs into a read",
        "_engines/memory.py",
        "return self._overlay().job(op.queue, op.id) or self._tables.job(op.queue, op.id)",
        "return self._tables.job(op.queue, op.id)",
        "conformance/test_memory.py::test_a_transaction_sees_its_own_jobs_and_nobody_else_does",
    ),
    Mutant(
        "memory wakes for a notify when it is staged",
        "_engines/memory.py",
        "    def _notify(self, op: ops.Notify) -> None:\n        return None\n\n    def _save",
        "    def _notify(self, op: ops.Notify) -> None:\n        self._engine.hub.fire((op.channel,))\n\n    def _save",
        "conformance/test_memory.py::test_a_staged_notify_wakes_nobody_before_the_commit_and_once_after_it",
    ),
    Mutant(
        "memory's discard wakes nobody",
        "_engines/memory.py",
        "self.hub.fire(ops.wakes_of_end((), self._tables.uncover(key, streams)))",
        "self._tables.uncover(key, streams)",
        "conformance/test_memory.py::test_a_discard_wakes_the_subscriber_of_what_it_held_back",
    ),
    Mutant(
        "memory's transaction commits at once",
        "_engines/memory.py",
        "            self._staged = staged(op, answer, now, self._staged)\n",
        "            self._tables.apply([staged(op, answer, now, None)])\n",
        "conformance/test_memory.py::test_a_discarded_transaction_leaves_nothing",
    ),
    Mutant(
        "memory's transaction passes a checkpoint before it finds the store closed",
        "_engines/memory.py",
        "        engine.check_open()  # `idle`, less a coroutine\n",
        "",
        "conformance/test_memory.py::test_every_verb_of_a_closed_store_is_closed_before_anything_else",
    ),
    Mutant(
        "a listener passes a checkpoint before he finds the store closed",
        "_receivers.py",
        "    await engine.idle()\n    inbox = _WakeInbox()\n",
        "    await engine.checkpoint()\n    inbox = _WakeInbox()\n",
        "conformance/test_memory.py::test_every_verb_of_a_closed_store_is_closed_before_anything_else",
    ),
    Mutant(
        "memory takes no notice of a clock that steps back",
        "_engines/memory.py",
        "        if now < tables.latest:\n",
        "        if False:\n",
        "conformance/test_memory.py::test_a_clock_that_steps_back_makes_a_row_wait_and_a_claim_valid_again",
    ),
    Mutant(
        "memory does not discard a transaction that is dropped",
        "_engines/memory.py",
        "        if self._open and self._streams:\n",
        "        if False:\n",
        "engines/test_memory.py::test_a_transaction_that_is_dropped_is_discarded_at_once",
    ),
    # What stands above the engines
    Mutant(
        "a worker renews nothing",
        "_worker.py",
        "                        if self._task.renewed:\n",
        "                        if False:\n",
        "conformance/test_memory.py::test_a_claim_is_renewed_for_as_long_as_its_handler_runs",
    ),
    Mutant(
        "a worker renews a claim when it is about to lapse",
        "_worker.py",
        "_RENEWALS = 3",
        "_RENEWALS = 1",
        "conformance/test_memory.py::test_a_claim_is_renewed_no_more_than_it_needs",
    ),
    Mutant(
        "a worker renews at each look",
        "_worker.py",
        "            held.renewed_at = now\n",
        "            pass\n",
        "conformance/test_memory.py::test_a_claim_is_renewed_no_more_than_it_needs",
    ),
    Mutant(
        "a worker renews the running alone",
        "_worker.py",
        "if not held.renewed_at <= now < held.due_at()]",
        "if held.scope and not held.renewed_at <= now < held.due_at()]",
        "conformance/test_memory.py::test_the_prefetched_are_renewed_like_the_running",
    ),
    Mutant(
        "a worker's renewer is not told of a claim that is due sooner than it looks",
        "_worker.py",
        "        if job.visibility_timeout < _RENEWALS * SLICE:",
        "        if False:",
        "conformance/test_memory.py::test_a_claim_is_renewed_for_as_long_as_its_handler_runs "
        "trio/test_autojump.py::test_a_handler_may_run_for_an_hour_under_a_short_visibility_timeout",
    ),
    Mutant(
        "a worker renews what is settled",
        "_worker.py",
        "for held in due if self._is_unsettled(held)]",
        "for held in due]",
        "conformance/test_memory.py::test_a_claim_that_is_settled_before_a_renewal_is_tried_again_is_not_renewed",
    ),
    Mutant(
        "a claim that was lost costs those their handlers that are renewed with it",
        "_worker.py",
        "            if held.handle in lost and self._is_unsettled(held):",
        "            if lost and self._is_unsettled(held):",
        "conformance/test_memory.py::test_of_claims_that_are_renewed_together_the_lost_one_cancels_its_handler_alone",
    ),
    Mutant(
        "a worker lets a handler run whose claim was lost",
        "_worker.py",
        "                if held.scope is not None:\n                    held.scope.cancel()\n                elif",
        "                if held.scope is not None:\n                    pass\n                elif",
        "conformance/test_memory.py::test_a_claim_that_was_lost_cancels_its_handler_and_the_worker_goes_on",
    ),
    Mutant(
        "a worker runs a prefetched job whose claim was lost",
        "_worker.py",
        "                    self._waiting.remove(held)\n",
        "                    pass\n",
        "conformance/test_memory.py::test_a_prefetched_claim_that_was_lost_is_not_run",
    ),
    Mutant(
        "a worker arms its bell after it has looked",
        "_worker.py",
        "                if ready.at is None or ready.at > ready.now:\n",
        "                event = self._change.arm()\n                if ready.at is None or ready.at > ready.now:\n",
        "conformance/test_memory.py::test_what_comes_while_a_worker_looks_how_long_to_wait_is_not_overlooked",
    ),
    Mutant(
        "a worker asks for a locked job on and on",
        "_worker.py",
        "                    with anyio.move_on_after(_NO_LUCK):\n                        await event.wait()\n",
        "                    pass\n",
        "engines/test_postgres_reading.py::test_a_worker_does_not_ask_on_and_on_for_a_job_that_somebody_else_has_locked",
    ),
    Mutant(
        "a worker holds more than it runs and prefetches",
        "_worker.py",
        "        free = most - len(self._held)\n",
        "        free = most\n",
        "conformance/test_memory.py::test_a_worker_holds_no_more_claims_than_it_runs_and_prefetches",
    ),
    Mutant(
        "what waits for its ack keeps a worker from claiming",
        "_worker.py",
        "return min(free + self._acking, free + most) if self._prefetch else free",
        "return free",
        "conformance/test_memory.py::test_a_worker_whose_acks_are_under_way_goes_on_with_as_many_jobs_again_and_no_more",
    ),
    Mutant(
        "a worker goes on claiming while many wait for their ack",
        "_worker.py",
        "return min(free + self._acking, free + most) if self._prefetch else free",
        "return free + self._acking if self._prefetch else free",
        "conformance/test_memory.py::test_a_worker_whose_acks_are_under_way_goes_on_with_as_many_jobs_again_and_no_more",
    ),
    Mutant(
        "a worker that is being stopped begins what waits",
        "_worker.py",
        "while self._waiting and not self._stopped():",
        "while self._waiting:",
        "conformance/test_memory.py::test_a_stop_lets_the_running_finish_within_its_grace "
        "conformance/test_memory.py::test_a_stop_ends_claiming_at_once "
        "conformance/test_memory.py::test_a_handler_may_stop_its_own_worker",
    ),
    Mutant(
        "a worker ignores its stop",
        "_worker.py",
        "                    with stopping(self._stop):\n",
        "                    with stopping(None):\n",
        "conformance/test_memory.py::test_a_stop_ends_claiming_at_once",
    ),
    Mutant(
        "a worker that is stopped gives its handlers no grace",
        "_worker.py",
        "with anyio.move_on_after(self._grace):",
        "with anyio.move_on_after(0.0):",
        "conformance/test_memory.py::test_a_stop_lets_the_running_finish_within_its_grace",
    ),
    Mutant(
        "a worker that is stopped waits for its handlers for good",
        "_worker.py",
        "with anyio.move_on_after(self._grace):",
        "with anyio.move_on_after(None):",
        "conformance/test_memory.py::test_a_stop_with_no_grace_cancels_and_releases_at_once_with_the_attempts_refunded",
    ),
    Mutant(
        "a worker that is stopped keeps what it has not begun",
        "_worker.py",
        "                    crew.start_soon(self._release_waiting)\n",
        "",
        "conformance/test_memory.py::test_a_stop_gives_back_at_once_what_waits_while_the_running_goes_on",
    ),
    Mutant(
        "a grace begins once what has not begun is given back",
        "_worker.py",
        "                    crew.start_soon(self._release_waiting)\n",
        "                    await self._release_waiting()\n",
        "conformance/test_memory.py::test_a_grace_does_not_wait_for_the_prefetched_to_be_given_back",
    ),
    Mutant(
        "a worker that is cancelled keeps what it has not begun",
        "_worker.py",
        "            await give_back(partial(ack_together, self._engine, self._queue, handles))\n"
        "        await self._release_waiting()\n",
        "            await give_back(partial(ack_together, self._engine, self._queue, handles))\n",
        "conformance/test_memory.py::test_a_worker_that_is_cancelled_at_any_turn_leaves_no_claim_behind",
    ),
    Mutant(
        "a worker that is cancelled does not ack what is done",
        "_worker.py",
        "        handles = _unsettled(self._done)\n        if handles:\n",
        "        handles = _unsettled(self._done)\n        if False:\n",
        "conformance/test_memory.py::test_a_handler_that_ends_well_although_its_worker_is_cancelled_is_acked",
    ),
    Mutant(
        "a cancellation cuts acks short",
        "_worker.py",
        "await patiently(self._engine, partial(unbroken, ack), self._doing)",
        "await patiently(self._engine, ack, self._doing)",
        "conformance/test_memory.py::test_a_worker_that_is_cancelled_acks_what_is_done_also_what_waits_for_another_ack",
    ),
    Mutant(
        "a handler that is cancelled keeps its job",
        "_worker.py",
        "        await give_back(handle.release)\n        raise\n",
        "        raise\n",
        "conformance/test_memory.py::test_cancelling_a_worker_releases_its_jobs_at_once_with_the_attempts_refunded",
    ),
    Mutant(
        "a handler's own cancelled future releases its job",
        "_worker.py",
        "isinstance(error, anyio.get_cancelled_exc_class()) and not is_cancelling():",
        "False:",
        "conformance/test_memory.py::test_a_cancelled_future_that_a_handler_awaited_is_its_own_failure",
    ),
    Mutant(
        "a handler whose result cannot be awaited keeps its job",
        "_worker.py",
        "    if not awaitable:\n        await give_back(handle.release)\n",
        "    if not awaitable:\n",
        "conformance/test_memory.py::"
        "test_a_handler_whose_result_cannot_be_awaited_is_a_type_error_with_its_claim_released",
    ),
    Mutant(
        "a discard retries",
        "_worker.py",
        "return partial(handle.fail, cleaned(verdict.reason))",
        "return partial(handle.retry, cleaned(verdict.reason))",
        "conformance/test_memory.py::test_a_discard_kills_with_its_very_text",
    ),
    Mutant(
        "a worker does not sweep at its start",
        "_worker.py",
        "                        await self._sweep()\n                        task_status",
        "                        task_status",
        "conformance/test_memory.py::test_a_worker_sweeps_its_queue_at_its_start",
    ),
    Mutant(
        "a worker sweeps once",
        "_worker.py",
        "                        crew.start_soon(self._sweep_on)\n",
        "",
        "conformance/test_memory.py::test_a_worker_sweeps_once_a_minute_of_the_stores_clock",
    ),
    Mutant(
        "a worker that was stopped before it could begin has not reported itself started",
        "_worker.py",
        "            if not started:\n                task_status.started()\n",
        "",
        "conformance/test_memory.py::"
        "test_a_worker_that_is_stopped_while_the_store_is_away_at_its_start_has_reported_itself_started",
    ),
    Mutant(
        "a cancellation cuts the settlement of a job short",
        "_worker.py",
        "await patiently(self._engine, partial(unbroken, verdict), self._doing)",
        "await patiently(self._engine, verdict, self._doing)",
        "conformance/test_memory.py::test_a_settlement_that_is_under_way_when_its_worker_is_cancelled_is_waited_for",
    ),
    Mutant(
        "a cancellation cuts a delivery's settlement short",
        "_worker.py",
        "    await unbroken(verdict or handle.ack)\n",
        "    await (verdict or handle.ack)()\n",
        "conformance/test_memory.py::test_a_delivery_that_returns_although_it_is_cancelled_is_acked",
    ),
    Mutant(
        "a free handler waits for a busy one",
        "_worker.py",
        "for _ in range(min(self._concurrency - self._active, len(rows))):",
        "for _ in range(min(1 - self._active, len(rows))):",
        "conformance/test_memory.py::test_a_worker_runs_up_to_its_concurrency_at_once",
    ),
    Mutant(
        "a runner does not renew before it ticks",
        "_runner.py",
        "            await lease.renew()\n            _, due",
        "            _, due",
        "conformance/test_memory.py::test_a_runner_renews_before_every_tick",
    ),
    Mutant(
        "a runner that ends keeps its lease",
        "_runner.py",
        "            await give_back(lock.release)\n",
        "            pass\n",
        "conformance/test_memory.py::test_a_stop_returns_none_and_the_next_runner_starts_at_once",
    ),
    Mutant(
        "a stop wins over a loss of the lease",
        "_runner.py",
        "            await _check_held(lock)\n",
        "",
        "conformance/test_memory.py::test_leadership_lost_wins_over_a_simultaneous_stop",
    ),
    Mutant(
        "a runner arms its bell after it has read",
        "_runner.py",
        "            event = bell.arm()\n"
        "            await lease.renew()\n"
        "            _, due = await tick(engine, lease)\n",
        "            await lease.renew()\n"
        "            _, due = await tick(engine, lease)\n"
        "            event = bell.arm()\n",
        "conformance/test_memory.py::test_a_schedule_that_is_added_while_a_runner_reads_is_not_overlooked",
    ),
    Mutant(
        "a standby ends when it loses its lease",
        "_runner.py",
        "            if not standby:\n                raise\n",
        "            raise\n",
        "conformance/test_memory.py::test_a_standby_that_loses_its_lease_logs_it_and_waits_for_its_turn",
    ),
    Mutant(
        "a standby that is stopped before its turn has not reported itself started",
        "_runner.py",
        "    if not started:\n        task_status.started()\n",
        "",
        "conformance/test_memory.py::test_a_standby_that_is_stopped_before_its_turn_has_still_reported_itself_started",
    ),
    Mutant(
        "a tick goes on when its lease is lost",
        "_runner.py",
        "        if fired is None:\n            raise lease.loss()\n",
        "        if fired is None:\n            continue\n",
        "conformance/test_memory.py::test_a_lease_lost_between_two_fires_keeps_the_first_and_withholds_the_second "
        "conformance/test_memory.py::test_a_leader_that_stalls_past_its_lease_before_a_fire_fires_nothing",
    ),
    Mutant(
        "a long tick does not renew its lease",
        "_runner.py",
        "        if anyio.current_time() >= renew_at:\n",
        "        if False:\n",
        "trio/test_autojump.py::test_a_leader_renews_within_a_tick_that_takes_longer_than_its_lease",
    ),
    Mutant(
        "a runner sleeps past the boundary that it has just set",
        "_runner.py",
        "        due.next_at = next_at if due.next_at is None else min(due.next_at, next_at)\n",
        "",
        "conformance/test_memory.py::test_a_runner_wakes_for_a_boundary_that_it_has_just_set",
    ),
    Mutant(
        "a subscriber arms its bell after it has read",
        "_receivers.py",
        "                events = await self._ask(ReadSince(self._stream, offset, room)) if room else []\n",
        "                events = await self._ask(ReadSince(self._stream, offset, room)) if room else []\n"
        "                room_or_event = self._bell.arm()\n",
        "conformance/test_memory.py::test_a_commit_while_the_subscriber_reads_is_not_lost",
    ),
    Mutant(
        "a subscriber starts at the beginning",
        "_receivers.py",
        "            offset = await self._ask(GetOffset(self._stream, self._consumer))\n",
        "            offset = 0\n",
        "conformance/test_memory.py::test_a_subscriber_starts_at_the_saved_offset",
    ),
    Mutant(
        "a subscriber holds more than its prefetch",
        "_receivers.py",
        "room = self._prefetch - len(self._inbox)",
        "room = self._prefetch",
        "conformance/test_memory.py::test_a_subscriber_that_stops_reading_holds_at_most_its_prefetch",
    ),
    Mutant(
        "a subscriber that was full is not told of room",
        "_receivers.py",
        "        if len(self._inbox) == self._prefetch // 2:\n",
        "        if False:\n",
        "conformance/test_memory.py::test_a_subscriber_that_stops_reading_holds_at_most_its_prefetch "
        "conformance/test_memory.py::test_a_slow_subscriber_slows_nobody_else",
    ),
    Mutant(
        "a subscriber's failure for good leaves its receiver open",
        "_receivers.py",
        "            self._inbox.close(error)\n",
        "            raise\n",
        "conformance/test_memory.py::"
        "test_a_re_read_that_failed_for_good_raises_from_the_receiver_and_never_out_of_the_block",
    ),
    Mutant(
        "a store that closes leaves a subscriber's end to its feeder",
        "_receivers.py",
        "        self._inbox.close()\n        self.ring()\n",
        "        self.ring()\n",
        "conformance/test_memory.py::test_a_receiver_of_a_closed_store_is_closed_at_once",
    ),
    Mutant(
        "a listener's buffer is not bounded",
        "_receivers.py",
        "if len(self) < WAKE_BUFFER or channel == RECONNECTED:",
        "if True:",
        "conformance/test_memory.py::test_unread_wakes_are_bounded",
    ),
    Mutant(
        "a listener's full buffer drops the wake after a reconnect",
        "_receivers.py",
        "if len(self) < WAKE_BUFFER or channel == RECONNECTED:",
        "if len(self) < WAKE_BUFFER:",
        "conformance/test_memory.py::test_the_wake_after_a_reconnect_is_never_dropped",
    ),
    Mutant(
        "a listener that has left leaves its receiver open",
        "_receivers.py",
        "        engine.hub.detach(channel, inbox)\n        inbox.close()\n",
        "        engine.hub.detach(channel, inbox)\n",
        "conformance/test_memory.py::test_leaving_the_block_closes_the_receiver_for_whoever_still_waits",
    ),
    Mutant(
        "a listener that has left stays attached",
        "_receivers.py",
        "        engine.hub.detach(channel, inbox)\n        inbox.close()\n",
        "        inbox.close()\n",
        "conformance/test_memory.py::test_a_listener_sees_nothing_of_what_comes_after_its_block",
    ),
    Mutant(
        "a held lock is not renewed",
        "_lock.py",
        "            background.start_soon(lease.keep)\n",
        "",
        "conformance/test_memory.py::test_a_held_lock_is_renewed_for_as_long_as_its_block_runs_and_then_released",
    ),
    Mutant(
        "a held lock is renewed when it is about to lapse",
        "_lock.py",
        "await elapsed(self._engine, self._ttl / _RENEWALS, bell, self._read_clock)",
        "await elapsed(self._engine, self._ttl, bell, self._read_clock)",
        "conformance/test_memory.py::test_a_held_lock_is_renewed_for_as_long_as_its_block_runs_and_then_released",
    ),
    Mutant(
        "a hold that its owner was merely granted again is not renewed at once",
        "_lock.py",
        "        await lease.renew()  # the hold may be",
        "        # the hold may be",
        "conformance/test_memory.py::"
        "test_a_hold_that_its_owner_was_merely_granted_again_is_renewed_at_once_and_released_on_leaving",
    ),
    Mutant(
        "a cancellation cuts the release of a lock short",
        "_lock.py",
        "            await give_back(self.release)\n",
        "            await self.release()\n",
        "conformance/test_memory.py::test_a_handle_releases_when_its_block_is_cancelled",
    ),
    Mutant(
        "a cancellation cuts the release of a lock whose block has run to its end short",
        "_lock.py",
        "            await unbroken(self.release)\n",
        "            await self.release()\n",
        "conformance/test_memory.py::test_a_handle_releases_when_its_block_runs_to_its_end_though_cancelled",
    ),
    Mutant(
        "a release that would wait for its own task hides the body's error",
        "_waiting.py",
        "    except Exception as error:\n        log.debug(",
        "    except DatabaseError as error:\n        log.debug(",
        "conformance/test_sqlite.py::test_an_error_of_the_body_wins_over_a_release_that_would_wait_for_its_own_task",
    ),
    Mutant(
        "what another task does for one is not taken for one's own",
        "_loop.py",
        "        _behalf[doing] = asking\n",
        "        _behalf[doing] = None\n",
        "conformance/test_sqlite.py::test_a_release_that_would_wait_for_its_own_task_is_the_error_of_a_body_that_had_none",
    ),
    Mutant(
        "a release that fails hides the body's error",
        "_lock.py",
        "        if error is None:\n            await unbroken(self.release)\n",
        "        if True:\n            await unbroken(self.release)\n",
        "conformance/test_memory.py::test_a_release_that_fails_does_not_hide_the_bodys_error",
    ),
    Mutant(
        "a release that fails is nobody's error",
        "_lock.py",
        "        if error is None:\n            await unbroken(self.release)\n",
        "        if False:\n            await unbroken(self.release)\n",
        "conformance/test_memory.py::test_a_release_that_fails_is_the_error_of_a_body_that_had_none",
    ),
    Mutant(
        "a hold outlives an outage that it cannot outlive",
        "_lock.py",
        "            if anyio.current_time() >= ends:\n",
        "            if False:\n",
        "trio/test_autojump.py::test_a_hold_rides_out_an_outage_that_it_outlives_and_is_lost_to_a_longer_one",
    ),
    Mutant(
        "a hold outlives its lease while the store does not answer",
        "_lock.py",
        "deadline=ends if self._engine.sleep is None else math.inf",
        "deadline=math.inf",
        "trio/test_autojump.py::test_a_hold_ends_with_its_lease_though_the_store_does_not_answer",
    ),
    Mutant(
        "a hold outlives its lease while the store does not tell the time",
        "_lock.py",
        ", bell, self._read_clock)",
        ", bell)",
        "trio/test_autojump.py::test_a_hold_ends_with_its_lease_though_the_store_does_not_answer",
    ),
    Mutant(
        "a lease is counted from the answer to its renewal",
        "_lock.py",
        "self._lives_until = asked + self._ttl",
        "self._lives_until = anyio.current_time() + self._ttl",
        "trio/test_autojump.py::test_a_lease_is_counted_from_before_the_renewal_that_is_answered_late",
    ),
    Mutant(
        "a store is not asked once a lease may be over",
        "_lock.py",
        "            ends = anyio.current_time() + self._ttl / _RENEWALS\n",
        "            pass\n",
        "trio/test_autojump.py::test_a_hold_that_the_store_confirms_outlives_its_lease_by_the_loops_clock",
    ),
    Mutant(
        "a waiter for a lock tries as often as it can",
        "_lock.py",
        "wait = min(wait * 2, SLICE)",
        "wait = 0.0",
        "conformance/test_memory.py::test_a_waiter_does_not_spin",
    ),
    Mutant(
        "a block that raises commits",
        "_tx.py",
        "if error is None and self._life is not None and",
        "if self._life is not None and",
        "conformance/test_memory.py::test_a_discarded_transaction_leaves_nothing",
    ),
    Mutant(
        "a block that is left is not discarded",
        "_tx.py",
        "        if life is not None and life.ended is None:\n",
        "        if False:\n",
        "conformance/test_memory.py::test_a_discard_wakes_the_subscriber_of_what_it_held_back",
    ),
    Mutant(
        "two tasks may be in a transaction at once",
        "_tx.py",
        "        if self._busy or self.ended is not None:\n",
        "        if self.ended is not None:\n",
        "conformance/test_memory.py::test_a_verb_while_another_task_is_inside_one_is_refused",
    ),
    Mutant(
        "a transaction may be used after its end",
        "_tx.py",
        "        if self._busy or self.ended is not None:\n",
        "        if self._busy:\n",
        "conformance/test_memory.py::test_a_verb_after_the_end_is_misuse",
    ),
    Mutant(
        "with_tx makes an attempt too many",
        "_tx.py",
        "or attempts < 1 or",
        "or attempts < 0 or",
        "conformance/test_memory.py::test_with_tx_raises_the_failure_of_its_last_attempt",
    ),
    Mutant(
        "with_tx repeats after any failure of the store",
        "_tx.py",
        "if not error.retryable or attempts",
        "if attempts",
        "conformance/test_memory.py::test_with_tx_never_repeats_after_any_other_failure",
    ),
    Mutant(
        "with_tx repeats a function that has ended its transaction",
        "_tx.py",
        'or (tx is not None and tx._life.ended != "discarded"):',
        "or False:",
        "conformance/test_memory.py::test_with_tx_never_repeats_a_function_that_ended_its_own_transaction",
    ),
    Mutant(
        "a payload of a notify that is just short enough is too large",
        "_tx.py",
        "len(body.encode()) > limit:",
        "len(body.encode()) >= limit:",
        "conformance/test_postgres.py::test_a_notify_payload_is_too_large_above_the_engines_limit_alone",
    ),
    Mutant(
        "whatever waits does not look at the store's clock in between",
        "_waiting.py",
        "seconds = min(max(seconds, 0.0), SLICE)",
        "seconds = max(seconds, 0.0)",
        "trio/test_autojump.py::test_a_step_forward_of_the_stores_clock_is_noticed_within_two_seconds",
    ),
    Mutant(
        "a clock that was set back holds a renewal up",
        "_waiting.py",
        "while began <= now < began + seconds:",
        "while now < began + seconds:",
        "conformance/test_memory.py::test_a_hold_outlives_a_step_back_and_is_renewed_by_the_clock_as_it_is",
    ),
    Mutant(
        "nobody is patient with a store that is away",
        "_waiting.py",
        "            if not passes(error):\n                raise\n",
        "            raise\n",
        "conformance/test_memory.py::test_a_worker_rides_out_a_store_that_is_away",
    ),
    Mutant(
        "everybody is patient with a store that is broken",
        "_waiting.py",
        "            if not passes(error):\n                raise\n",
        "",
        "conformance/test_memory.py::test_a_failure_that_does_not_pass_ends_the_worker_as_itself",
    ),
    Mutant(
        "an answer that was lost on its way ends whoever asked",
        "_waiting.py",
        "return error.transient or error.retryable or isinstance(error, CommitUnknown)",
        "return error.transient or error.retryable",
        "conformance/test_memory.py::test_a_worker_rides_out_a_store_that_is_away",
    ),
    Mutant(
        "a retryable failure ends whoever asked",
        "_waiting.py",
        "return error.transient or error.retryable or",
        "return error.transient or",
        "conformance/test_memory.py::test_a_worker_rides_out_a_store_that_is_away",
    ),
    Mutant(
        "a store that is away is asked less and less often without an end",
        "_waiting.py",
        "backoff = min(backoff * 2, _LAST_RETRY)",
        "backoff = backoff * 2",
        "conformance/test_memory.py::test_a_worker_waits_longer_and_longer_for_a_store_that_is_away_and_caps_it",
    ),
    Mutant(
        "a store that is away is asked as often as at first",
        "_waiting.py",
        "backoff = min(backoff * 2, _LAST_RETRY)",
        "pass",
        "conformance/test_memory.py::test_a_worker_waits_longer_and_longer_for_a_store_that_is_away_and_caps_it",
    ),
    Mutant(
        "a cancellation cuts short what is given back on the way out",
        "_waiting.py",
        "        await unbroken(in_time)\n",
        "        await in_time()\n",
        "conformance/test_memory.py::"
        "test_cancelling_a_worker_releases_its_jobs_at_once_with_the_attempts_refunded "
        "conformance/test_sqlite.py::"
        "test_cancelling_a_worker_releases_its_jobs_at_once_with_the_attempts_refunded",
    ),
    Mutant(
        "a store that does not answer keeps whoever leaves",
        "_waiting.py",
        "        with anyio.move_on_after(_LAST_TRY):\n",
        "        with anyio.move_on_after(None):\n",
        "conformance/test_memory.py::test_a_store_that_does_not_answer_a_release_keeps_nobody_from_ending",
    ),
    Mutant(
        "a token that was cancelled before ends no scope",
        "_waiting.py",
        "            if self._cancelled:\n",
        "            if False:\n",
        "conformance/test_memory.py::test_a_token_that_is_cancelled_ends_a_scope_at_its_first_checkpoint",
    ),
    Mutant(
        "what waits on a store is not detached",
        "_waiting.py",
        "        engine.hub.detach(channel, bell)\n",
        "        pass\n",
        "engines/test_memory.py::test_nobody_stays_attached_who_has_stopped_waiting",
    ),
    Mutant(
        "a helper's error wins over the body's",
        "_waiting.py",
        "        if interrupted and self._error is not None and (error is None or absorbed):\n",
        "        if self._error is not None:\n",
        "conformance/test_memory.py::test_an_error_of_the_body_wins_over_a_lost_hold "
        "conformance/test_memory.py::test_an_error_of_the_body_wins_over_what_ended_its_hold",
    ),
    Mutant(
        "what must not be interrupted is not shielded",
        "_loop.py",
        "    with anyio.CancelScope(shield=True):\n        if _on_trio():\n",
        "    with anyio.CancelScope(shield=False):\n        if _on_trio():\n",
        "conformance/test_sqlite.py::test_a_handle_releases_when_its_block_is_cancelled",
    ),
    Mutant(
        "a bare cancellation that came while it could not be heeded is lost",
        "_loop.py",
        "    if interrupted:\n        cancel_later()\n",
        "",
        "conformance/test_memory.py::test_a_block_whose_bare_task_is_cancelled_anywhere_did_nothing_or_all "
        "conformance/test_sqlite.py::test_a_block_whose_bare_task_is_cancelled_anywhere_did_nothing_or_all "
        "conformance/test_sqlite.py::test_a_verb_whose_bare_task_is_cancelled_anywhere_did_nothing",
    ),
    Mutant(
        "a bare cancellation that came during a wait for the engine is lost",
        "_loop.py",
        "    if bare:\n        cancel_later()\n",
        "",
        "conformance/test_sqlite.py::test_a_block_whose_bare_task_is_cancelled_anywhere_did_nothing_or_all "
        "conformance/test_sqlite.py::test_a_verb_whose_bare_task_is_cancelled_anywhere_did_nothing",
    ),
    Mutant(
        "a cancellation that is handed on outlives whoever asked for it",
        "_loop.py",
        "            if caller.cancelling():  # else",
        "            if True:  # else",
        "conformance/test_memory.py::test_a_block_whose_bare_task_is_cancelled_anywhere_did_nothing_or_all",
    ),
    Mutant(
        "whoever waits for the engine raises though the op stands",
        "_loop.py",
        "    if not isinstance(interruption, cancelled) or in_vain():\n",
        "    if True:\n",
        "conformance/test_sqlite.py::test_a_verb_that_is_cancelled_anywhere_did_nothing",
    ),
    Mutant(
        "a run of verbs keeps the loop to itself",
        "_loop.py",
        "TURN = 0.0003",
        "TURN = 300.0",
        "engines/test_memory.py::test_a_loop_of_verbs_lets_other_tasks_have_their_turns",
    ),
    Mutant(
        "a bell is not rung at the close",
        "_wake.py",
        '        """The hub is closing: wake up and see."""\n        self.ring()\n',
        '        """The hub is closing: wake up and see."""\n',
        "conformance/test_memory.py::test_a_store_that_closes_under_a_worker_ends_it_with_closed "
        "conformance/test_memory.py::test_closing_the_store_ends_a_waiting_subscriber",
    ),
    Mutant(
        "a bell that was rung stays rung",
        "_wake.py",
        "            self._event.set()\n            self._event = None\n",
        "            self._event.set()\n",
        "conformance/test_memory.py::test_an_idle_worker_wakes_for_an_enqueue",
    ),
    Mutant(
        "a receiver is not told of its end",
        "_wake.py",
        "            self.closed, self.error = True, error\n            self._arrived.ring()\n",
        "            self.closed, self.error = True, error\n",
        "conformance/test_memory.py::test_closing_the_store_ends_whoever_waits_for_a_wake",
    ),
    Mutant(
        "a closed receiver does not hand out what was buffered",
        "_wake.py",
        "        if self._items:\n            return",
        "        if self._items and not self.closed:\n            return",
        "conformance/test_memory.py::test_closing_hands_out_what_was_buffered_first",
    ),
    Mutant(
        "closing the hub leaves its wakers attached",
        "_wake.py",
        "                waker.close()\n",
        "                pass\n",
        "conformance/test_memory.py::test_closing_the_store_ends_whoever_waits_for_a_wake",
    ),
    Mutant(
        "who attaches to a closed hub waits for good",
        "_wake.py",
        "        if self.closed:\n            raise Closed\n",
        "",
        "conformance/test_memory.py::test_a_worker_of_a_closed_store_is_closed_after_its_argument_checks "
        "conformance/test_memory.py::test_every_verb_of_a_closed_store_is_closed_before_anything_else",
    ),
    Mutant(
        "one listener that leaves takes all others along",
        "_wake.py",
        "            if not wakers:\n                del",
        "            if True:\n                del",
        "conformance/test_memory.py::test_one_listener_leaving_takes_no_other_with_it",
    ),
    Mutant(
        "a settlement that was cancelled has settled its handle",
        "_queue.py",
        "        except BaseException:\n            self._settled = False\n            raise\n",
        "        except BaseException:\n            raise\n",
        "conformance/test_memory.py::test_a_cancelled_settlement_leaves_the_handle_unsettled",
    ),
    Mutant(
        "two settlements of a handle may be under way",
        "_queue.py",
        "        self._settled = True\n        try:\n            return bool(await self._unit.do(op))\n",
        "        try:\n            landed = bool(await self._unit.do(op))\n            self._settled = True\n"
        "            return landed\n",
        "conformance/test_memory.py::test_while_a_settlement_is_in_flight_any_other_is_false_and_asks_nothing",
    ),
    Mutant(
        "a batch of acks that was cancelled has settled its handles",
        "_queue.py",
        "            handle._settled = False\n        raise\n",
        "            pass\n        raise\n",
        "conformance/test_memory.py::test_a_cancelled_batch_of_acks_leaves_its_handles_unsettled",
    ),
    # What SQLite and Postgres run alike
    Mutant(
        "SQL: a job expires after its instant, not at it",
        "_engines/statements.py",
        '_UNEXPIRED = "(expires_at is null or expires_at > :now)"',
        '_UNEXPIRED = "(expires_at is null or expires_at >= :now)"',
        "engines/test_sqlite_plans.py::test_the_one_fragment_that_is_true_of_a_row_is_that_of_its_slot",
    ),
    Mutant(
        "SQL: an expired claim is free at its deadline",
        "_engines/statements.py",
        '_FREE = "(state = 0 or state = 1 and claim_expires_at < :now)"',
        '_FREE = "(state = 0 or state = 1 and claim_expires_at <= :now)"',
        "engines/test_sqlite_plans.py::test_the_one_fragment_that_is_true_of_a_row_is_that_of_its_slot",
    ),
    Mutant(
        "SQL: a job is due after its instant, not at it",
        "_engines/statements.py",
        '_DUE = "(state = 0 and run_at <= :now or',
        '_DUE = "(state = 0 and run_at < :now or',
        "engines/test_postgres_plans.py::test_the_one_fragment_that_is_true_of_a_row_is_that_of_its_slot",
    ),
    Mutant(
        "SQL: a job has an attempt more than its stamp says",
        "_engines/statements.py",
        "{_UNEXPIRED} and attempts < max_attempts",
        "{_UNEXPIRED} and attempts <= max_attempts",
        "engines/test_sqlite_plans.py::test_the_one_fragment_that_is_true_of_a_row_is_that_of_its_slot",
    ),
    Mutant(
        "SQL: a claim has lapsed at its deadline already",
        "_engines/statements.py",
        'LEASED = "state = 1 and claim_expires_at >= :now"',
        'LEASED = "state = 1 and claim_expires_at > :now"',
        "conformance/test_sqlite.py::test_an_op_is_in_time_at_the_deadline "
        "conformance/test_postgres.py::test_an_op_is_in_time_at_the_deadline",
    ),
    Mutant(
        "SQL: a job is seen in every queue",
        "_engines/statements.py",
        'from $jobs\nwhere id = :id and queue = :queue"""\n\nJOBS',
        'from $jobs\nwhere id = :id and :queue = :queue"""\n\nJOBS',
        "conformance/test_sqlite.py::test_a_job_is_seen_in_its_own_queue_alone_and_when_dead",
    ),
    Mutant(
        "SQL: a page of jobs begins with the last of the one before",
        "_engines/statements.py",
        "where queue = :queue and id > :after\norder",
        "where queue = :queue and id >= :after\norder",
        "conformance/test_sqlite.py::test_jobs_are_paged_by_the_last_id",
    ),
    Mutant(
        "SQL: a page of one state begins with the last of the one before",
        "_engines/statements.py",
        "where queue = :queue and id > :after and state",
        "where queue = :queue and id >= :after and state",
        "conformance/test_sqlite.py::test_the_claimed_and_the_dead_are_paged_by_the_last_id_too",
    ),
    Mutant(
        "SQL: a page of the dead begins with the last of the one before",
        "_engines/statements.py",
        "where queue = :queue and id > :after and lane = 3",
        "where queue = :queue and id >= :after and lane = 3",
        "conformance/test_sqlite.py::test_the_claimed_and_the_dead_are_paged_by_the_last_id_too",
    ),
    Mutant(
        "SQL: a read gives the event at its offset again",
        "_engines/statements.py",
        'where stream = :stream and "offset" > :offset',
        'where stream = :stream and "offset" >= :offset',
        "conformance/test_sqlite.py::test_a_read_gives_what_is_greater_than_its_offset_and_no_more_than_its_limit",
    ),
    # SQLite
    Mutant(
        "SQLite acks without looking at the token",
        "_engines/statements.py",
        'ACK = f"""\ndelete from $jobs\nwhere id = :id and queue = :queue and token = :token and {LEASED}"""',
        'ACK = f"""\ndelete from $jobs\nwhere id = :id and queue = :queue and :token = :token and {LEASED}"""',
        "conformance/test_sqlite.py::test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "SQLite acks a claim that has lapsed",
        "_engines/statements.py",
        'ACK = f"""\ndelete from $jobs\nwhere id = :id and queue = :queue and token = :token and {LEASED}"""',
        'ACK = """\ndelete from $jobs\nwhere id = :id and queue = :queue and token = :token and :now = :now"""',
        "conformance/test_sqlite.py::test_a_late_op_is_refused_and_the_row_is_as_it_was",
    ),
    Mutant(
        "SQLite settles without looking at the token",
        "_engines/statements.py",
        "select {JOB}\nfrom $jobs\nwhere id = :id and queue = :queue and token = :token",
        "select {JOB}\nfrom $jobs\nwhere id = :id and queue = :queue and :token = :token",
        "conformance/test_sqlite.py::test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "SQLite claims the lowest priority first",
        "_engines/statements.py",
        "order by priority desc, run_at, id\nlimit :n",
        "order by priority, run_at, id\nlimit :n",
        "conformance/test_sqlite.py::test_claims_go_by_priority_then_run_at_then_id",
    ),
    Mutant(
        "SQLite claims by id whatever the run_at",
        "_engines/statements.py",
        "order by priority desc, run_at, id\nlimit :n",
        "order by priority desc, id\nlimit :n",
        "conformance/test_sqlite.py::test_claims_go_by_priority_then_run_at_then_id",
    ),
    Mutant(
        "SQLite claims the latest id first",
        "_engines/statements.py",
        "order by priority desc, run_at, id\nlimit :n",
        "order by priority desc, run_at, id desc\nlimit :n",
        "conformance/test_sqlite.py::test_claims_go_by_priority_then_run_at_then_id",
    ),
    Mutant(
        "SQLite keeps a dead row at the end of its retention",
        "_engines/statements.py",
        "died_at + dead_retention <= :now",
        "died_at + dead_retention < :now",
        "conformance/test_sqlite.py::test_a_dead_row_is_kept_for_its_retention",
    ),
    Mutant(
        "SQLite revives what is not dead",
        "_engines/statements.py",
        "where id = :id and queue = :queue and {BURIED}",
        "where id = :id and queue = :queue and ({BURIED} or true)",
        "conformance/test_sqlite.py::test_only_dead_rows_of_the_queue_are_revived_each_once",
    ),
    Mutant(
        "SQLite deletes a job under a valid claim",
        "_engines/statements.py",
        "where id = :id and queue = :queue and not ({LEASED})",
        "where id = :id and queue = :queue and not ({LEASED} and false)",
        "conformance/test_sqlite.py::test_everything_but_a_live_claim_of_the_queue_is_deleted",
    ),
    Mutant(
        "SQLite lets a saved offset go back",
        "_engines/statements.py",
        'set "offset" = excluded."offset"\nwhere excluded."offset" > $offsets."offset\\""""',
        'set "offset" = excluded."offset"\nwhere excluded."offset" <> $offsets."offset\\""""',
        "conformance/test_sqlite.py::test_a_saved_offset_never_goes_back "
        "conformance/test_sqlite.py::test_the_merge_of_two_saves_keeps_the_greater",
    ),
    Mutant(
        "SQLite keeps the event at a trim's horizon",
        "_engines/statements.py",
        'where stream = :stream and "offset" <= :horizon',
        'where stream = :stream and "offset" < :horizon',
        "conformance/test_sqlite.py::test_a_trim_deletes_up_to_its_horizon_and_that_too",
    ),
    Mutant(
        "SQLite gives the offsets of trimmed events again",
        "_engines/statements.py",
        "on conflict(stream) do update\nset last = last + :n\n",
        "on conflict(stream) do update\n"
        'set last = :n + coalesce((select max("offset") from $events where stream = :stream), 0)\n',
        "conformance/test_sqlite.py::test_offsets_are_never_given_again_after_a_trim_and_saved_ones_stay",
    ),
    Mutant(
        "SQLite renews a lock at its deadline",
        "_engines/statements.py",
        "where name = :name and token = :token and expires_at > :now",
        "where name = :name and token = :token and expires_at >= :now",
        "conformance/test_sqlite.py::test_a_renewal_at_or_past_expiry_is_false_though_nobody_took_the_lock",
    ),
    Mutant(
        "SQLite renews the hold of somebody else",
        "_engines/statements.py",
        "where name = :name and token = :token and expires_at > :now",
        "where name = :name and :token = :token and expires_at > :now",
        "conformance/test_sqlite.py::test_an_owner_that_asks_after_a_lapse_has_a_new_hold",
    ),
    Mutant(
        "SQLite releases the hold of somebody else",
        "_engines/statements.py",
        "delete from $locks\nwhere name = :name and token = :token",
        "delete from $locks\nwhere name = :name and :token = :token",
        "conformance/test_sqlite.py::test_a_release_after_another_took_the_lock_is_false_and_leaves_it",
    ),
    Mutant(
        "SQLite finds a schedule due after its boundary, not at it",
        "_engines/statements.py",
        "where next_at <= :now",
        "where next_at < :now",
        "conformance/test_sqlite.py::test_nothing_fires_before_its_boundary_and_one_job_at_it",
    ),
    Mutant(
        "SQLite fires a schedule that has moved on",
        "_engines/statements.py",
        "where name = :name and next_at = :seen",
        "where name = :name and :seen = :seen",
        "conformance/test_sqlite.py::test_a_schedule_that_changes_after_the_reading_does_not_fire_on_what_was_read",
    ),
    Mutant(
        "SQLite gives ids back that others have passed",
        "_engines/statements.py",
        "where name = 'job' and last = :end",
        "where name = 'job' and :end = :end",
        "engines/test_sqlite_locks.py::test_no_store_gives_ids_back_that_another_has_passed",
    ),
    Mutant(
        "SQLite prunes wakes and tells nobody",
        "_engines/statements.py",
        "when 'prunings' then last + 1 else",
        "when 'prunings' then last else",
        "engines/test_sqlite_wakes.py::test_what_is_kept_is_bounded_and_whoever_may_have_missed_something_is_told",
    ),
    Mutant(
        "SQLite's claims do not file what is due",
        "_engines/sqlops.py",
        "    if moved & 5:\n",
        "    if moved & 4:\n",
        "conformance/test_sqlite.py::test_a_row_is_claimable_from_its_run_at_on",
    ),
    Mutant(
        "SQLite's claims do not file what a clock that was set back has revived",
        "_engines/sqlops.py",
        "    if moved & 4:\n        yield sql.FILE_UNEXPIRED, where\n",
        "",
        "engines/test_sqlite_agreement.py::test_what_is_exhausted_dies_although_it_was_once_filed_as_expired "
        "conformance/test_sqlite.py::test_an_exhausted_job_dies_whatever_the_clock_had_made_of_it_before",
    ),
    Mutant(
        "SQLite's claims bury nobody",
        "_engines/sqlops.py",
        "        yield sql.BURY_SPENT, where\n",
        "",
        "conformance/test_sqlite.py::test_a_lapsed_claim_without_attempts_dies_of_the_next_claim",
    ),
    Mutant(
        "SQLite saves an offset of zero",
        "_engines/sqlops.py",
        "    if op.offset <= 0:  # where everybody begins\n",
        "    if op.offset < 0:  # where everybody begins\n",
        "conformance/test_sqlite.py::test_a_saved_offset_never_goes_back "
        "conformance/test_sqlite.py::test_streams_are_those_with_an_event_or_a_saved_offset",
    ),
    Mutant(
        "SQLite holds a lock at its deadline",
        "_engines/sqlops.py",
        "        if expires_at > now:\n",
        "        if expires_at >= now:\n",
        "conformance/test_sqlite.py::test_a_hold_lapses_exactly_at_its_ttl",
    ),
    Mutant(
        "SQLite grants a lock that another owner holds",
        "_engines/sqlops.py",
        "token if owner == op.owner else None",
        "token",
        "conformance/test_sqlite.py::test_a_lock_is_held_until_it_is_released",
    ),
    Mutant(
        "SQLite's lock tokens do not grow",
        "_engines/sqlops.py",
        '    [(last,)] = yield sql.RESERVE, {"name": "token", "n": 1}\n',
        '    [(last,)] = yield sql.RESERVE, {"name": "token", "n": 0}\n',
        "conformance/test_sqlite.py::test_tokens_grow_with_each_new_hold_after_release_and_after_lapse",
    ),
    Mutant(
        "SQLite fires on a lease that has lapsed",
        "_engines/sqlops.py",
        "if not any(token == op.token and expires_at > now for",
        "if not any(token == op.token for",
        "conformance/test_sqlite.py::test_a_leader_that_stalls_past_its_lease_before_a_fire_fires_nothing",
    ),
    Mutant(
        "SQLite fires on the lease of another leader",
        "_engines/sqlops.py",
        "if not any(token == op.token and expires_at > now for",
        "if not any(expires_at > now for",
        "conformance/test_sqlite.py::test_a_lease_that_another_took_meanwhile_fires_nothing",
    ),
    Mutant(
        "SQLite fires as of its own reading of the clock",
        "_engines/sqlops.py",
        "None, None, priority, expires), op.at, ids)",
        "None, None, priority, expires), now, ids)",
        "conformance/test_sqlite.py::test_a_leader_that_stalls_within_its_lease_fires_as_of_its_reading",
    ),
    Mutant(
        "SQLite stamps what is staged with the instant of the commit",
        "_engines/sqlops.py",
        "                added += _added(write, effect.answer, effect.now)\n",
        "                added += _added(write, effect.answer, max(other.now for other in record))\n",
        "conformance/test_sqlite.py::test_the_clock_is_read_when_an_effect_is_staged",
    ),
    Mutant(
        "SQLite publishes the events that are left over where the twenties stand",
        "_engines/sqlops.py",
        "for at in range(whole, n)]",
        "for at in range(n - whole)]",
        "conformance/test_sqlite.py::test_publish_many_takes_any_number",
    ),
    Mutant(
        "SQLite merges no staged offset",
        "_engines/sqlops.py",
        "                yield from _save_offset(write, effect.now, ())\n",
        "                pass\n",
        "conformance/test_sqlite.py::test_the_merge_of_two_saves_keeps_the_greater",
    ),
    Mutant(
        "SQLite wakes the other stores of nothing that stays",
        "_engines/sqlite/writer.py",
        "            self._session.run(wake(channels, self._origin, self._wakes, time.time()))\n",
        "",
        "engines/test_sqlite_processes.py::test_a_wake_whose_hint_was_lost_is_found_by_the_safety_poll",
    ),
    Mutant(
        "SQLite hints nothing to the other stores",
        "_engines/sqlite/writer.py",
        "        if channels:\n            try:\n                self._peers.tell(",
        "        if channels:\n            try:\n                list(",
        "engines/test_sqlite_processes.py::test_another_process_wakes_who_waits_here_well_before_the_safety_poll",
    ),
    Mutant(
        "SQLite hints to the other stores before the commit",
        "_engines/sqlite/writer.py",
        "        try:\n            self._session.commit()\n",
        "        self._peers.tell((mark(channel), self._origin, self._wakes) for channel in channels)\n"
        "        time.sleep(0.1)\n        channels = {}\n        try:\n            self._session.commit()\n",
        "engines/test_sqlite_wakes.py::test_whoever_another_store_wakes_finds_what_it_has_committed",
    ),
    Mutant(
        "SQLite calls a commit transient that could not be synced",
        "_engines/sqlite/writer.py",
        "            if is_unsynced(error):\n",
        "            if False:\n",
        "engines/test_sqlite_faults.py::test_a_commit_that_was_written_and_could_not_be_synced_is_commit_unknown",
    ),
    Mutant(
        "SQLite fails a whole group with the one that fails",
        "_engines/sqlite/writer.py",
        "            if len(group) == 1:\n",
        "            if True:\n",
        "engines/test_sqlite_failures.py::test_one_that_fails_does_not_take_its_neighbours_down",
    ),
    Mutant(
        "SQLite runs a group again as a group",
        "_engines/sqlite/requests.py",
        '        """Undo `take` and whatever was done: it is to be run again, in a transaction of its own."""\n'
        "        self.alone = True\n",
        '        """Undo `take` and whatever was done: it is to be run again, in a transaction of its own."""\n',
        "engines/test_sqlite_failures.py::test_one_that_fails_does_not_take_its_neighbours_down",
    ),
    Mutant(
        "SQLite keeps what a group that failed had done",
        "_engines/sqlite/writer.py",
        "                    self._waiting.appendleft(request)\n            self._rollback()\n",
        "                    self._waiting.appendleft(request)\n            self._session.commit()\n",
        "engines/test_sqlite_failures.py::test_one_that_fails_does_not_take_its_neighbours_down",
    ),
    Mutant(
        "SQLite breaks off whatever statement is running",
        "_engines/sqlite/writer.py",
        "            if self._running is request:\n",
        "            if True:\n",
        "engines/test_sqlite_failures.py::test_a_statement_that_is_broken_off_too_late_takes_no_other_with_it",
    ),
    Mutant(
        "SQLite lets writes wait for good",
        "_engines/sqlite/writer.py",
        "while self._waiting and self._waiting[0].queued_at <= eldest:",
        "while False:",
        "engines/test_sqlite_locks.py::"
        "test_a_write_that_another_connection_keeps_waiting_fails_as_transient_after_the_busy_timeout",
    ),
    Mutant(
        "SQLite's held writer does not look whose patience is over",
        "_engines/sqlite/writer.py",
        "            if time.monotonic() > hold.glance_at:\n",
        "            if False:\n",
        "engines/test_sqlite_locks.py::"
        "test_a_write_that_a_transaction_keeps_waiting_fails_as_transient_and_names_its_task",
    ),
    Mutant(
        "SQLite leaves requests unanswered that come after the end",
        "_engines/sqlite/writer.py",
        "        if self._over:\n            refuse",
        "        if False:\n            refuse",
        "engines/test_sqlite_locks.py::test_a_write_that_comes_when_the_writer_has_ended_is_answered",
    ),
    Mutant(
        "SQLite forgets what was staged when a transaction takes the writer",
        "_engines/sqlite/tx.py",
        "        session.run(sqlops.merge(record))\n        return work",
        "        return work",
        "conformance/test_sqlite.py::test_a_job_and_an_event_of_one_transaction_become_visible_together",
    ),
    Mutant(
        "SQLite commits a staged transaction without its wakes",
        "_engines/sqlite/tx.py",
        "lambda session: session.run(sqlops.merge(record)), lambda _: channels\n",
        "lambda session: session.run(sqlops.merge(record)), lambda _: ()\n",
        "conformance/test_sqlite.py::test_an_idle_worker_wakes_for_a_job_of_a_transaction_once_it_commits",
    ),
    Mutant(
        "SQLite commits a real transaction without its wakes",
        "_engines/sqlite/tx.py",
        "await self._really(nothing, wakes=lambda _: channels, settled",
        "await self._really(nothing, wakes=lambda _: (), settled",
        "conformance/test_sqlite.py::test_notifies_wake_first_in_stage_order_then_events_then_queues",
    ),
    Mutant(
        "SQLite's rollback leaves the writer held",
        "_engines/sqlite/tx.py",
        "        if hold is not None:\n            hold.discard()\n            self._engine.freed(hold)\n",
        "        if hold is not None:\n            self._engine.freed(hold)\n",
        "conformance/test_sqlite.py::test_a_discarded_transaction_leaves_nothing",
    ),
    Mutant(
        "SQLite lets a task wait for itself",
        "_engines/sqlite/engine.py",
        "        if self.holder is not None and self.holder.task ==",
        "        if False and self.holder.task ==",
        "engines/test_sqlite_locks.py::test_a_write_of_the_task_whose_transaction_holds_the_writer_is_refused_at_once",
    ),
    Mutant(
        "SQLite puts ids back into the pool that greater ones have passed",
        "_engines/sqlite/ids.py",
        "        if ids[-1] == self._last:\n",
        "        if True:\n",
        "engines/test_sqlite_locks.py::test_ids_that_are_put_back_when_greater_ones_are_taken_are_gaps",
    ),
    Mutant(
        "SQLite wakes nobody of its own",
        "_engines/sqlite/engine.py",
        "                self.hub.fire(request.channels)\n",
        "                pass\n",
        "conformance/test_sqlite.py::test_an_idle_worker_wakes_for_an_enqueue",
    ),
    Mutant(
        "SQLite takes no notice of a gap in the hints",
        "_engines/sqlite/engine.py",
        "        if origin and known <= seq <= known + 1:\n",
        "        if origin and known <= seq:\n",
        "engines/test_sqlite_wakes.py::test_a_hint_after_one_that_was_lost_has_its_reader_look",
    ),
    Mutant(
        "SQLite never looks without a hint",
        "_engines/sqlite/engine.py",
        "due = now + (_SAFETY_POLL if",
        "due = now + (1e9 if",
        "engines/test_sqlite_processes.py::test_a_wake_whose_hint_was_lost_is_found_by_the_safety_poll",
    ),
    Mutant(
        "SQLite does not wait for a write that is under way when its caller is cancelled",
        "_engines/sqlite/engine.py",
        "            if withdraw(request):\n                raise\n            await insist(done, interruption)\n",
        "            withdraw(request)\n            raise\n",
        "conformance/test_sqlite.py::test_a_verb_that_is_cancelled_anywhere_did_nothing",
    ),
    Mutant(
        "SQLite's joined effect keeps what it did before it failed",
        "_engines/sqlite/joined.py",
        "                if self._connection.in_transaction:\n"
        '                    session.query("rollback to alkstore")\n',
        "                if self._connection.in_transaction:\n",
        "engines/test_sqlite_joined.py::test_each_effect_is_all_or_nothing",
    ),
    # Postgres
    Mutant(
        "Postgres asks the server's clock anew for each value of a statement",
        "_engines/postgres/statements.py",
        '_NOW = "(select now from t)"\n',
        '_NOW = "coalesce(:clock, extract(epoch from clock_timestamp())::float8)"\n',
        "engines/test_postgres_processes.py::test_without_a_clock_of_its_own_an_operation_has_one_instant_all_the_same",
    ),
    Mutant(
        "Postgres claims what another claim holds at this moment",
        "_engines/postgres/statements.py",
        " order by ~priority, run_at, id\n limit :n\n for update skip locked\n",
        " order by ~priority, run_at, id\n limit :n\n",
        "engines/test_postgres_reading.py::test_a_claim_passes_over_a_job_that_somebody_else_has_locked",
    ),
    Mutant(
        "Postgres waits for what another claim holds at this moment",
        "_engines/postgres/statements.py",
        " order by ~priority, run_at, id\n limit :n\n for update skip locked\n",
        " order by ~priority, run_at, id\n limit :n\n for update\n",
        "engines/test_postgres_reading.py::test_a_claim_passes_over_a_job_that_somebody_else_has_locked",
    ),
    Mutant(
        "Postgres claims the lowest priority first",
        "_engines/postgres/statements.py",
        "{{behind}}\n order by ~priority, run_at, id\n limit :n",
        "{{behind}}\n order by priority, run_at, id\n limit :n",
        "conformance/test_postgres.py::test_a_claim_order_holds_over_many_priorities",
    ),
    Mutant(
        "Postgres gives the rows of a claim without regard to their priorities",
        "_engines/postgres/sqlops.py",
        "            rows.sort(key=_BY_PRIORITY, reverse=True)\n",
        "",
        "conformance/test_postgres.py::test_a_batch_is_as_many_single_claims",
    ),
    Mutant(
        "Postgres gives the rows of a claim in the order of their ids",
        "_engines/postgres/sqlops.py",
        "            rows.sort(key=_BY_AGE)\n",
        "",
        "conformance/test_postgres.py::test_a_batch_is_as_many_single_claims",
    ),
    Mutant(
        "Postgres tells queues apart by their hashes alone",
        "_engines/postgres/statements.py",
        "_HASHED_QUEUE = f\"queue_hash = {_hash(':queue')} and coalesce(queue = :queue, false)\"",
        "_HASHED_QUEUE = f\"queue_hash = {_hash(':queue')}\"",
        "engines/test_postgres_reading.py::test_a_verb_of_a_queue_touches_no_other_of_its_hash",
    ),
    Mutant(
        "Postgres has the server guess a queue's length by hash and name",
        "_engines/postgres/statements.py",
        "_HASHED_QUEUE = f\"queue_hash = {_hash(':queue')} and coalesce(queue = :queue, false)\"",
        "_HASHED_QUEUE = f\"queue_hash = {_hash(':queue')} and queue = :queue\"",
        "engines/test_postgres_plans.py::test_no_queue_is_sorted_however_many_there_are",
    ),
    Mutant(
        "Postgres gives all that was claimed together to one worker",
        "_engines/postgres/statements.py",
        "else (:worker_ids)[array_position(array(select id from picked), id)]",
        "else (:worker_ids)[1]",
        "conformance/test_postgres.py::test_of_claims_at_the_same_time_each_has_its_own_worker_and_jobs",
    ),
    Mutant(
        "Postgres keeps the token of the claim before",
        "_engines/postgres/statements.py",
        "  token = token + 1,\n  worker_id",
        "  token = 1,\n  worker_id",
        "conformance/test_postgres.py::"
        "test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "Postgres buries no one who is exhausted",
        "_engines/postgres/statements.py",
        "  state = case when {SPENT} then 2 else state end",
        "  state = state",
        "conformance/test_postgres.py::test_a_lapsed_claim_without_attempts_dies_of_the_next_claim",
    ),
    Mutant(
        "Postgres acks without looking at the token",
        "_engines/postgres/statements.py",
        'ACK = f"""\ndelete from $jobs\nwhere id = :id and queue = :queue and token = :token',
        'ACK = f"""\ndelete from $jobs\nwhere id = :id and queue = :queue and :token = :token',
        "conformance/test_postgres.py::"
        "test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "Postgres acks together what has lapsed",
        "_engines/postgres/statements.py",
        "where {_BY_EACH} and queue = :queue and {LEASED}\n",
        "where {_BY_EACH} and queue = :queue and :now = :now\n",
        "conformance/test_postgres.py::test_a_batch_of_acks_is_judged_row_by_row",
    ),
    Mutant(
        "Postgres looks for acked jobs in every queue",
        "_engines/postgres/statements.py",
        "where {_BY_EACH} and queue = :queue and",
        "where {_BY_EACH} and",
        "engines/test_postgres_plans.py::test_a_statement_is_led_by_the_index_that_was_made_for_it[ACK_TOGETHER]",
    ),
    Mutant(
        "a claim on Postgres that files what time has moved looks for what is ready too",
        "_engines/postgres/statements.py",
        " claims and not gets and (\n",
        " not gets and (\n",
        "engines/test_postgres_plans.py::test_a_claim_that_files_what_time_has_moved_looks_for_nothing_that_is_ready",
    ),
    Mutant(
        "Postgres fails without looking at the token",
        "_engines/postgres/statements.py",
        "last_error = :error, died_at = :now\nwhere id = :id and queue = :queue and token = :token",
        "last_error = :error, died_at = :now\nwhere id = :id and queue = :queue and :token = :token",
        "conformance/test_postgres.py::"
        "test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "Postgres retries without looking at the token",
        "_engines/postgres/statements.py",
        "then :now end\nwhere id = :id and queue = :queue and token = :token",
        "then :now end\nwhere id = :id and queue = :queue and :token = :token",
        "conformance/test_postgres.py::"
        "test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "Postgres releases and extends without looking at the token",
        "_engines/postgres/statements.py",
        '_BY_ONE = "id = :id and token = :token"',
        '_BY_ONE = "id = :id and :token = :token"',
        "conformance/test_postgres.py::"
        "test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything",
    ),
    Mutant(
        "Postgres acks, releases and extends together without looking at the tokens",
        "_engines/postgres/statements.py",
        "((id, token) in (select * from unnest(:ids, :tokens))) is true",
        "(id in (select id from unnest(:ids, :tokens) as each(id, token))) is true",
        "engines/test_postgres_wakes.py::"
        "test_moves_that_have_waited_for_a_row_leave_one_alone_that_was_claimed_anew_meanwhile "
        "engines/test_postgres_wakes.py::"
        "test_acks_that_have_waited_for_a_row_leave_one_alone_that_was_claimed_anew_meanwhile",
    ),
    Mutant(
        "Postgres gives a retry an attempt more than the stamp says",
        "_engines/postgres/statements.py",
        "state = case when attempts >= max_attempts then 2 else 0 end",
        "state = case when attempts > max_attempts then 2 else 0 end",
        "conformance/test_postgres.py::test_a_retry_without_attempts_left_kills_with_its_text",
    ),
    Mutant(
        "Postgres keeps the attempt of a release",
        "_engines/postgres/statements.py",
        " attempts = attempts - 1,\n",
        " attempts = attempts,\n",
        "conformance/test_postgres.py::test_a_release_refunds_the_attempt_and_keeps_run_at",
    ),
    Mutant(
        "Postgres lets a lease end at once that a float cannot tell from now",
        "_engines/postgres/statements.py",
        '"greatest(:now + {0}, :now + abs(:now) * 1.1102240e-16)"',
        '"(:now + {0})"',
        "engines/test_postgres_plans.py::test_a_lease_ends_when_the_rules_say",
    ),
    Mutant(
        "Postgres keeps a dead row at the end of its retention",
        "_engines/postgres/statements.py",
        "died_at + dead_retention <= :now",
        "died_at + dead_retention < :now",
        "conformance/test_postgres.py::test_a_dead_row_is_kept_for_its_retention",
    ),
    Mutant(
        "Postgres deletes a job under a valid claim",
        "_engines/postgres/statements.py",
        "where id = any(:ids) and queue = :queue and not ({LEASED})",
        "where id = any(:ids) and queue = :queue and not ({LEASED} and false)",
        "conformance/test_postgres.py::test_everything_but_a_live_claim_of_the_queue_is_deleted",
    ),
    Mutant(
        "Postgres lets a saved offset go back",
        "_engines/postgres/statements.py",
        'where excluded."offset" > saved."offset"',
        'where excluded."offset" <> saved."offset"',
        "conformance/test_postgres.py::test_a_saved_offset_never_goes_back "
        "conformance/test_postgres.py::test_the_merge_of_two_saves_keeps_the_greater",
    ),
    Mutant(
        "Postgres keeps the event at a trim's horizon",
        "_engines/postgres/statements.py",
        'where stream = :stream and "offset" <= :horizon',
        'where stream = :stream and "offset" < :horizon',
        "conformance/test_postgres.py::test_a_trim_deletes_up_to_its_horizon_and_that_too",
    ),
    Mutant(
        "Postgres reads the event at a consumer's offset again",
        "_engines/postgres/statements.py",
        'where stream = :stream and "offset" > coalesce(',
        'where stream = :stream and "offset" >= coalesce(',
        "conformance/test_postgres.py::test_a_consumer_reads_from_its_saved_offset_which_the_read_does_not_move",
    ),
    Mutant(
        "Postgres holds a lock at its deadline",
        "_engines/postgres/statements.py",
        "lock.owner is null or lock.expires_at <= :now",
        "lock.owner is null or lock.expires_at < :now",
        "conformance/test_postgres.py::test_a_hold_lapses_exactly_at_its_ttl",
    ),
    Mutant(
        "Postgres holds a lock that was released until it lapses",
        "_engines/postgres/statements.py",
        "where lock.owner is null or lock.expires_at <= :now",
        "where lock.expires_at <= :now",
        "conformance/test_postgres.py::test_a_lock_is_held_until_it_is_released",
    ),
    Mutant(
        "Postgres's lock tokens do not grow",
        "_engines/postgres/statements.py",
        "set owner = excluded.owner, token = nextval($'tokens'), expires_at",
        "set owner = excluded.owner, token = lock.token, expires_at",
        "conformance/test_postgres.py::test_tokens_grow_with_each_new_hold_after_release_and_after_lapse",
    ),
    Mutant(
        "Postgres renews a lock at its deadline",
        "_engines/postgres/statements.py",
        "token = :token and owner is not null and expires_at > :now\nreturning",
        "token = :token and owner is not null and expires_at >= :now\nreturning",
        "conformance/test_postgres.py::test_a_renewal_at_or_past_expiry_is_false_though_nobody_took_the_lock",
    ),
    Mutant(
        "Postgres renews a lock that was released",
        "_engines/postgres/statements.py",
        "token = :token and owner is not null and expires_at > :now\nreturning",
        "token = :token and expires_at > :now\nreturning",
        "conformance/test_postgres.py::test_either_handle_of_one_hold_renews_and_releases_it "
        "conformance/test_postgres.py::test_a_lock_is_held_until_it_is_released",
    ),
    Mutant(
        "Postgres releases the hold of somebody else",
        "_engines/postgres/statements.py",
        "set owner = null\nwhere name = :name and token = :token and",
        "set owner = null\nwhere name = :name and :token = :token and",
        "conformance/test_postgres.py::test_a_release_after_another_took_the_lock_is_false_and_leaves_it",
    ),
    Mutant(
        "Postgres forgets locks before their day is over",
        "_engines/postgres/statements.py",
        "where owner is null and expires_at < :now - 86400",
        "where owner is null and expires_at < :now",
        "engines/test_postgres_wakes.py::test_a_lock_that_nobody_has_taken_for_a_day_is_forgotten_and_its_token_is_not",
    ),
    Mutant(
        "Postgres forgets locks that were not released",
        "_engines/postgres/statements.py",
        "where owner is null and expires_at < :now - 86400",
        "where expires_at < :now - 86400",
        "engines/test_postgres_wakes.py::test_a_lock_that_nobody_has_taken_for_a_day_is_forgotten_and_its_token_is_not",
    ),
    Mutant(
        "Postgres starts a new grid at each registration",
        "_engines/postgres/statements.py",
        "case when known.interval = excluded.interval then known.next_at else excluded.next_at end",
        "excluded.next_at",
        "conformance/test_postgres.py::test_an_unchanged_interval_keeps_the_grid_and_replaces_the_rest",
    ),
    Mutant(
        "Postgres finds a schedule due after its boundary, not at it",
        "_engines/postgres/statements.py",
        "left join $schedules as due on due.next_at <= :now",
        "left join $schedules as due on due.next_at < :now",
        "conformance/test_postgres.py::test_nothing_fires_before_its_boundary_and_one_job_at_it",
    ),
    Mutant(
        "Postgres fires by name alone",
        "_engines/postgres/statements.py",
        "order by due.next_at, due.name",
        "order by due.name",
        "conformance/test_postgres.py::test_schedules_fire_in_order_of_boundary_and_name_each_with_all_its_fires",
    ),
    Mutant(
        "Postgres fires a schedule that has moved on",
        "_engines/postgres/statements.py",
        "where schedule.name = :name and schedule.next_at = :seen\n",
        "where schedule.name = :name and :seen = :seen\n",
        "conformance/test_postgres.py::test_a_schedule_that_changes_after_the_reading_does_not_fire_on_what_was_read",
    ),
    Mutant(
        "Postgres fires on a lease that has lapsed",
        "_engines/postgres/statements.py",
        "  and lease.expires_at > coalesce(",
        "  and 'infinity'::float8 > coalesce(",
        "conformance/test_postgres.py::test_a_leader_that_stalls_past_its_lease_before_a_fire_fires_nothing",
    ),
    Mutant(
        "Postgres fires on the lease of another leader",
        "_engines/postgres/statements.py",
        "lease.name = :lease and lease.token = :token and",
        "lease.name = :lease and :token = :token and",
        "conformance/test_postgres.py::test_a_lease_that_another_took_meanwhile_fires_nothing",
    ),
    Mutant(
        "Postgres fires on a lease that was released",
        "_engines/postgres/statements.py",
        "lease.token = :token and lease.owner is not null\n",
        "lease.token = :token\n",
        "conformance/test_postgres.py::test_a_lease_that_was_released_meanwhile_fires_nothing",
    ),
    Mutant(
        "Postgres's claim that comes back empty behind its cursor is not asked again",
        "_engines/postgres/sqlops.py",
        "            behind = None\n",
        "            return [[] for _ in together], seconds\n",
        "engines/test_postgres_wakes.py::"
        "test_a_queue_that_comes_back_empty_behind_its_cursor_is_looked_at_from_its_head",
    ),
    Mutant(
        "Postgres gives up on a claim that has only filed what time moved",
        "_engines/postgres/sqlops.py",
        "        elif not filed:\n",
        "        else:\n",
        "engines/test_postgres_agreement.py::test_more_rows_than_one_statement_files_anew_come_due_at_once",
    ),
    Mutant(
        "Postgres counts a claim twice that two acks name",
        "_engines/postgres/sqlops.py",
        "        left.difference_update(landed)",
        "        set().difference_update(landed)",
        "conformance/test_postgres.py::test_of_acks_of_one_claim_at_the_same_time_one_lands",
    ),
    Mutant(
        "Postgres sends enqueues together as one whose delays differ",
        "_engines/postgres/sqlops.py",
        "        and one.delay == other.delay\n",
        "",
        "conformance/test_postgres.py::test_of_enqueues_at_the_same_time_each_keeps_its_own_options",
    ),
    Mutant(
        "Postgres sends enqueues together as one whose instants differ",
        "_engines/postgres/sqlops.py",
        "        and one.run_at == other.run_at\n",
        "",
        "conformance/test_postgres.py::test_of_enqueues_at_the_same_time_each_keeps_its_own_options",
    ),
    Mutant(
        "Postgres sends enqueues together as one whose expiries differ",
        "_engines/postgres/sqlops.py",
        "        and one.expires == other.expires\n",
        "",
        "conformance/test_postgres.py::test_of_enqueues_at_the_same_time_each_keeps_its_own_options",
    ),
    Mutant(
        "Postgres sends enqueues together as one whose queues differ",
        "_engines/postgres/sqlops.py",
        "        one.queue == other.queue\n        and one.stamps",
        "        one.stamps",
        "conformance/test_postgres.py::test_of_enqueues_at_the_same_time_each_goes_to_its_own_queue",
    ),
    Mutant(
        "Postgres sends enqueues together as one whose priorities differ",
        "_engines/postgres/sqlops.py",
        "        and one.priority == other.priority\n",
        "",
        "conformance/test_postgres.py::test_of_enqueues_at_the_same_time_each_keeps_its_own_options",
    ),
    Mutant(
        "Postgres sends enqueues together as one whose stamps differ",
        "_engines/postgres/sqlops.py",
        "        and one.stamps == other.stamps\n",
        "",
        "conformance/test_postgres.py::test_of_enqueues_at_the_same_time_each_keeps_its_own_options",
    ),
    Mutant(
        "Postgres tells nobody that wakes may have been missed",
        "_engines/postgres/wakes.py",
        "                self._hub.reconnected()\n",
        "                pass\n",
        "engines/test_postgres_outages.py::"
        "test_a_listener_whose_connection_is_killed_is_told_that_it_may_have_missed_wakes",
    ),
    Mutant(
        "Postgres hears its own voice",
        "_engines/postgres/wakes.py",
        "if notify.channel == self._channel and notify.payload[:_MARK] != self._mark",
        "if notify.channel == self._channel",
        "engines/test_postgres_wakes.py::test_a_store_takes_no_notice_of_its_own_voice",
    ),
    Mutant(
        "Postgres tells each wake by itself",
        "_engines/postgres/wakes.py",
        "        self._waiting.update(dict.fromkeys(channels))\n",
        '        self._waiting.update({f"{channel} {len(self._waiting)}": None for channel in channels})\n',
        "engines/test_postgres_wakes.py::test_what_is_told_is_told_once_however_often_it_happens_meanwhile",
    ),
    Mutant(
        "Postgres says nothing of what has gathered when it closes",
        "_engines/postgres/wakes.py",
        "                if self._waiting:\n                    await self._say()\n",
        "                pass\n",
        "engines/test_postgres_wakes.py::test_what_is_told_is_told_once_however_often_it_happens_meanwhile",
    ),
    Mutant(
        "Postgres does not ask whether the connection that listens lives",
        "_engines/postgres/wakes.py",
        '                await connection.run("select 1", ())\n',
        "                pass\n",
        "engines/test_postgres_outages.py::test_a_listening_connection_that_is_half_open_is_noticed_and_replaced",
    ),
    Mutant(
        "Postgres tells other stores nothing of a transaction",
        "_engines/postgres/tx.py",
        "        self._engine.voice.tell(\n",
        "        list(\n",
        "engines/test_postgres_wakes.py::test_a_commit_in_one_store_wakes_whoever_waits_in_another",
    ),
    Mutant(
        "Postgres wakes nobody of its own after a transaction",
        "_engines/postgres/tx.py",
        "        self._engine.hub.fire(ops.wakes_of_end(self._effects, ()))\n",
        "",
        "conformance/test_postgres.py::test_an_idle_worker_wakes_for_a_job_of_a_transaction_once_it_commits",
    ),
    Mutant(
        "Postgres wakes its own before the commit",
        "_engines/postgres/tx.py",
        "        try:\n            await unbroken(self._commit)\n",
        "        self._engine.hub.fire(ops.wakes_of_end(self._effects, ()))\n"
        "        await anyio.lowlevel.checkpoint()\n"
        "        try:\n            await unbroken(self._commit)\n",
        "conformance/test_postgres.py::test_whoever_is_woken_by_a_commit_finds_all_of_it "
        "conformance/test_postgres.py::test_a_staged_notify_wakes_nobody_before_the_commit_and_once_after_it",
    ),
    Mutant(
        "Postgres lets a task wait for itself",
        "_engines/postgres/tx.py",
        "                engine.holds.take(key, self._hold)\n",
        "                pass\n",
        "engines/test_postgres_outages.py::test_a_write_that_would_wait_for_its_own_task_is_refused_at_once",
    ),
    Mutant(
        "a joined effect on Postgres is cut short where it is cancelled",
        "_engines/postgres/joined.py",
        "            return await _seen_through(connection, partial(self._done, op))\n",
        "            return await self._done(op)\n",
        "engines/test_postgres_joined.py::test_an_effect_that_is_cancelled_under_way_stands_with_its_wake_or_not_at_all",
    ),
    Mutant(
        "a joined effect on Postgres that waits is waited for whoever is cancelled",
        "_engines/postgres/joined.py",
        "                    await connection.cancel_safe(timeout=_CANCEL_BOUND)\n",
        "                    pass\n",
        "engines/test_postgres_joined.py::test_a_write_that_waits_for_another_is_called_off_when_it_is_cancelled",
    ),
    Mutant(
        "a joined effect on Postgres keeps the connection of a server that does not answer",
        "_engines/postgres/joined.py",
        "        patience.cancel()\n",
        "",
        "engines/test_postgres_joined.py::"
        "test_a_server_that_does_not_answer_to_a_cancellation_loses_the_connection_and_nothing_stands",
    ),
    Mutant(
        "a joined effect on Postgres keeps the loop from who holds its stream",
        "_engines/postgres/joined.py",
        "            holds.refuse_blocking(op)\n",
        "",
        "engines/test_postgres_joined.py::"
        "test_a_joined_write_that_would_keep_the_loop_from_the_transaction_it_waits_for_is_refused",
    ),
    Mutant(
        "a joined effect on Postgres leaves the store's bound in the application's transaction",
        "_engines/postgres/joined.py",
        "                await self._run(sqlops.set_bound(bound))\n",
        "                pass\n",
        "engines/test_postgres_joined.py::test_the_bound_of_the_applications_own_waits_is_what_it_was",
    ),
    Mutant(
        "a joined effect on Postgres waits longer than the application does",
        "_engines/postgres/statements.py",
        "when bound = '0' or bound::interval > (:bound)::interval then",
        "when true then",
        "engines/test_postgres_joined.py::test_a_bound_of_the_applications_own_that_is_less_is_kept_to",
    ),
    Mutant(
        "Postgres holds what a transaction held that has ended",
        "_engines/postgres/tx.py",
        "        self._engine.holds.let_go(self._hold)\n",
        "",
        "engines/test_postgres_outages.py::test_a_write_that_would_wait_for_its_own_task_is_refused_at_once",
    ),
    Mutant(
        "Postgres calls a commit transient whose answer was lost",
        "_engines/postgres/tx.py",
        "            if error.sqlstate is None or not connection.answers:\n",
        "            if False:\n",
        "engines/test_postgres_outages.py::"
        "test_a_commit_whose_connection_is_cut_before_its_answer_is_commit_unknown_and_may_stand",
    ),
    Mutant(
        "Postgres calls a write transient whose answer was lost",
        "_engines/postgres/engine.py",
        "            if not reads and not connection.alive and error.sqlstate not in _CERTAIN:\n",
        "            if False:\n",
        "engines/test_postgres_outages.py::test_a_write_whose_connection_is_cut_is_commit_unknown_and_a_read_transient",
    ),
    Mutant(
        "Postgres tells other stores nothing",
        "_engines/postgres/engine.py",
        "            self.voice.tell(woken)\n",
        "            pass\n",
        "engines/test_postgres_wakes.py::test_a_commit_in_one_store_wakes_whoever_waits_in_another",
    ),
    Mutant(
        "Postgres fails all that travel together with the one that fails",
        "_engines/postgres/lanes.py",
        "            if len(calls) == 1 or error.transient or isinstance(error, CommitUnknown):\n",
        "            if True:\n",
        "engines/test_postgres_reading.py::test_one_that_fails_does_not_fail_those_who_travel_with_him",
    ),
    Mutant(
        "Postgres sends again what may stand already",
        "_engines/postgres/lanes.py",
        "            if len(calls) == 1 or error.transient or isinstance(error, CommitUnknown):\n",
        "            if len(calls) == 1 or error.transient:\n",
        "engines/test_postgres_outages.py::"
        "test_calls_that_travel_together_and_whose_connection_is_cut_are_not_sent_again",
    ),
    Mutant(
        "Postgres sends each of a lane alone",
        "_engines/postgres/lanes.py",
        "            if calls and rows + call.size > _TOGETHER:\n",
        "            if calls:\n",
        "engines/test_postgres_reading.py::test_those_who_travel_together_when_the_store_is_left_arrive "
        "engines/test_postgres_outages.py::"
        "test_calls_that_travel_together_and_whose_connection_is_cut_are_not_sent_again",
    ),
    Mutant(
        "Postgres sends many at once",
        "_engines/postgres/lanes.py",
        "        enough = work / 2 if work > _MANY else work\n",
        "        enough = work\n",
        "engines/test_postgres_reading.py::test_many_go_in_two_halves_where_commits_are_quick",
    ),
    Mutant(
        "Postgres sends many in two halves however long a commit takes",
        "_engines/postgres/lanes.py",
        "        besides = _CALL if self._company.quick else 0\n",
        "        besides = _CALL\n",
        "engines/test_postgres_reading.py::test_many_go_in_two_halves_where_commits_are_quick",
    ),
    Mutant(
        "Postgres sends all who wait, however few come back",
        "_engines/postgres/lanes.py",
        "        work = self._last\n",
        "        work = 0\n",
        "engines/test_postgres_reading.py::test_two_halves_stay_as_large_as_each_other",
    ),
    Mutant(
        "Postgres expects those back who have been away for long",
        "_engines/postgres/lanes.py",
        "            self._last = 0\n            self._end()\n",
        "            self._end()\n",
        "engines/test_postgres_reading.py::test_of_many_rows_a_half_goes_first",
    ),
    Mutant(
        "Postgres expects as many back as a huge call had rows",
        "_engines/postgres/lanes.py",
        "        self._last = min(done, _TOGETHER)\n",
        "        self._last = done\n",
        "engines/test_postgres_reading.py::test_behind_a_huge_one_many_go_in_two_halves_too",
    ),
    Mutant(
        "Postgres expects those back who were called off",
        "_engines/postgres/lanes.py",
        "        self._last = 0\n        for call in reversed(calls):\n",
        "        for call in reversed(calls):\n",
        "engines/test_postgres_reading.py::test_of_those_who_were_called_off_a_half_goes_first",
    ),
    Mutant(
        "Postgres calls off whoever is under way when one who was answered is cancelled",
        "_engines/postgres/lanes.py",
        "            if not call.done.is_set():  # else others are under way\n",
        "            if True:\n",
        "engines/test_postgres_reading.py::test_who_is_cancelled_once_his_answer_is_there_concerns_nobody_else "
        "engines/test_postgres_reading.py::test_who_is_cancelled_while_his_store_is_closed_is_told_so",
    ),
    Mutant(
        "Postgres has the first of a lane leave alone whoever is about to come",
        "_engines/postgres/lanes.py",
        "        return self._left > 0\n",
        "        return False\n",
        "engines/test_postgres_reading.py::test_those_who_have_gone_together_do_not_leave_one_by_one",
    ),
    Mutant(
        "Postgres sends what a closed store's caller has not sent yet",
        "_engines/postgres/lanes.py",
        "                    if self._closed:\n                        raise Closed\n",
        "",
        "engines/test_postgres_reading.py::"
        "test_who_ends_while_others_have_their_turn_has_sent_nothing_and_lets_them_go",
    ),
    Mutant(
        "Postgres keeps the lane of every stream and queue",
        "_engines/postgres/engine.py",
        "partial(self._named.pop, key)",
        "lambda: None",
        "engines/test_postgres_reading.py::test_a_lane_is_forgotten_whose_last_call_is_withdrawn_before_it_is_sent",
    ),
    Mutant(
        "Postgres leaves those waiting in a lane who wait when the store closes",
        "_engines/postgres/engine.py",
        "            for lane in self._lanes():\n                lane.close()\n",
        "",
        "engines/test_postgres_reading.py::test_those_who_wait_in_a_lane_that_is_held_up_can_go",
    ),
    Mutant(
        "Postgres fails those who travel with one who gives up",
        "_engines/postgres/lanes.py",
        "                call.sent = False\n                self._waiting.appendleft(call)\n",
        "                call.error = Closed()\n                call.done.set()\n",
        "engines/test_postgres_reading.py::test_one_who_gives_up_does_not_fail_those_who_travel_with_him",
    ),
    Mutant(
        "Postgres keeps one who gives up waiting for those who travel with him",
        "_engines/postgres/lanes.py",
        "            self._patience.deadline = min(self._patience.deadline, anyio.current_time() + _PATIENCE)\n",
        "",
        "engines/test_postgres_outages.py::"
        "test_a_verb_that_travels_with_others_and_is_cancelled_where_nobody_answers_ends_in_bounded_time",
    ),
    Mutant(
        "Postgres sends what was withdrawn",
        "_engines/postgres/lanes.py",
        "                self._waiting.remove(call)\n                raise\n",
        "                raise\n",
        "engines/test_postgres_reading.py::test_those_who_wait_in_a_lane_that_is_held_up_can_go",
    ),
    Mutant(
        "Postgres keeps its cursor though the queue was woken",
        "_engines/postgres/cursors.py",
        "    def wake(self, channel: str) -> None:\n        self.cursors.drop(self.queue)\n",
        "    def wake(self, channel: str) -> None:\n        pass\n",
        "engines/test_postgres_wakes.py::test_a_row_before_the_cursor_is_found_once_anybody_tells_of_it",
    ),
    Mutant(
        "Postgres's claim leaves a cursor though its queue was woken meanwhile",
        "_engines/postgres/cursors.py",
        "elif not self.woken and (",
        "elif (",
        "engines/test_postgres_reading.py::test_a_claim_under_way_when_its_queue_is_woken_leaves_no_cursor",
    ),
    Mutant(
        "Postgres keeps its cursor for good",
        "_engines/postgres/cursors.py",
        "if cursor is not None and anyio.current_time() >= cursor.until:",
        "if False:",
        "engines/test_postgres_wakes.py::test_a_cursor_lasts_no_longer_than_it_may",
    ),
    Mutant(
        "Postgres leaves a cursor after a quick claim",
        "_engines/postgres/cursors.py",
        "(self.place is not None or seconds > _LONG + _EACH * n)",
        "True",
        "engines/test_postgres_wakes.py::test_a_quick_claim_leaves_no_cursor",
    ),
    Mutant(
        "Postgres makes do with what is behind its cursor",
        "_engines/postgres/statements.py",
        '    enough=" and (select count(*) from picked) = :n",\n',
        '    enough="",\n',
        "engines/test_postgres_wakes.py::test_claims_go_on_where_a_slow_one_ended",
    ),
    Mutant(
        "Postgres deals the first worker's claims to all",
        "_engines/postgres/sqlops.py",
        "[list(islice(shares.get(op.worker_id, ()), op.n)) for op in together], last, seconds\n",
        "[list(islice(next(iter(shares.values())), op.n)) for op in together], last, seconds\n",
        "engines/test_postgres_reading.py::test_each_of_those_who_claim_together_gets_what_was_claimed_in_his_name",
    ),
    Mutant(
        "Postgres does not wait at the end for what it was about to tell",
        "_engines/postgres/engine.py",
        "        self._tasks[scope] = ended  # from now on: closing waits for those that have not begun to run, too\n",
        "",
        "engines/test_postgres_wakes.py::test_what_was_written_just_before_its_store_was_left_wakes_others",
    ),
    Mutant(
        "Postgres lets transactions have the last connection",
        "_engines/postgres/pool.py",
        "        self._shares = size - 1 ",
        "        self._shares = size ",
        "engines/test_postgres_connection.py::test_transactions_leave_one_place_to_others",
    ),
    Mutant(
        "Postgres lets those who may have to wait have the last connection",
        "_engines/postgres/pool.py",
        "(use is Use.HELD_STATEMENT and self._held > 0)",
        "0",
        "engines/test_postgres_connection.py::test_those_who_may_have_to_wait_at_the_server_leave_one_place_to_others",
    ),
    Mutant(
        "Postgres loses the place that was granted to a cancelled task",
        "_engines/postgres/pool.py",
        "            if waiter.granted:\n                self._leave(use)\n            elif",
        "            if waiter.granted:\n                pass\n            elif",
        "engines/test_postgres_connection.py::test_a_place_that_was_granted_to_a_cancelled_task_is_passed_on",
    ),
    Mutant(
        "Postgres takes a script for a statement",
        "_engines/postgres/connection.py",
        "            self.pgconn.send_query_params(sql.encode(self.info.encoding), None)\n",
        "            self.pgconn.send_query(sql.encode(self.info.encoding))\n",
        "engines/test_postgres_reading.py::test_what_is_not_one_statement_is_refused_and_nothing_can_be_committed "
        "conformance/test_postgres.py::test_two_statements_at_once_are_refused_and_nothing_of_them_stands",
    ),
    Mutant(
        "Postgres leaves what a caller has set",
        "_engines/postgres/tx.py",
        "            connection.lent = True\n",
        "",
        "engines/test_postgres_reading.py::test_what_a_caller_sets_ends_with_his_transaction",
    ),
    Mutant(
        "Postgres takes back a session that it could not reset",
        "_engines/postgres/connection.py",
        "            and not self.lent\n",
        "",
        "engines/test_postgres_reading.py::test_a_session_that_cannot_be_reset_is_closed_and_the_commit_stands",
    ),
    Mutant(
        "Postgres resets the session of a pooler",
        "_engines/postgres/server.py",
        "if connection.lent and not connection.pooled:",
        "if connection.lent:",
        "engines/test_postgres_reading.py::test_the_session_of_a_pooler_is_not_reset_and_its_connection_is_closed",
    ),
    Mutant(
        "Postgres does not set again what matters after a reset",
        "_engines/postgres/server.py",
        "            if await self._is_set(connection):\n",
        "            if True:\n",
        "engines/test_postgres_reading.py::test_what_a_caller_leaves_is_gone_when_his_transaction_has_ended",
    ),
    Mutant(
        "Postgres prepares in a session that was lent",
        "_engines/postgres/connection.py",
        "        if self.pooled or self.lent:\n",
        "        if self.pooled:\n",
        "engines/test_postgres_reading.py::"
        "test_our_statements_go_on_in_a_transaction_whose_caller_makes_the_server_forget_them",
    ),
    Mutant(
        "comments do not nest before a statement that ends a transaction",
        "_engines/execute.py",
        '            depth += 1 if found[0] == "/*" else -1\n',
        "            depth = 0\n",
        "conformance/test_postgres.py::"
        "test_a_statement_that_would_end_the_transaction_is_refused_and_leaves_it_as_it_was",
    ),
]


if __name__ == "__main__":
    sys.exit(main())
