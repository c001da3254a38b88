"""Where a row stands, and what it becomes."""

import math
import sys
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore_trio import JobState
from alkstore_trio._rules import backoff, queue
from alkstore_trio._rules.queue import JobRow, Slot
from alkstore_trio._rules.stamps import Stamps

NOW = 1_000.0
BEFORE, AFTER = math.nextafter(NOW, 0), math.nextafter(NOW, math.inf)
HUGE = sys.float_info.max

STAMPS = Stamps(visibility_timeout=30.0, max_attempts=3, base_backoff=5.0, dead_retention=60.0)


def row(**changes: Any) -> JobRow:
    fresh = JobRow(7, "q", "1", STAMPS, priority=2, run_at=NOW - 10, expires_at=None, created_at=NOW - 20)
    return attrs.evolve(fresh, **changes)


def held(**changes: Any) -> JobRow:
    claim = {"state": JobState.PROCESSING, "attempts": 1, "token": 1, "worker_id": "w", "claim_expires_at": NOW + 5}
    return row(**(claim | changes))


def dead(**changes: Any) -> JobRow:
    return held(**({"state": JobState.DEAD, "last_error": "x", "died_at": NOW - 1} | changes))


def fields(some: JobRow) -> dict[str, Any]:
    return attrs.asdict(some, recurse=False, filter=lambda field, _: field.name != "filed")


@pytest.mark.parametrize("attempts", [0, 2, 3, 4])
@pytest.mark.parametrize("expires_at", [None, BEFORE, NOW, AFTER])
@pytest.mark.parametrize("run_at", [BEFORE, NOW, AFTER])
def test_a_pending_row_is_expired_or_delayed_or_ready_or_spent(
    run_at: float, expires_at: float | None, attempts: int
) -> None:
    if expires_at is not None and expires_at <= NOW:
        expected = Slot.EXPIRED
    elif run_at > NOW:
        expected = Slot.DELAYED
    else:
        expected = Slot.READY if attempts < 3 else Slot.SPENT
    assert queue.slot(row(run_at=run_at, expires_at=expires_at, attempts=attempts), NOW) is expected


@pytest.mark.parametrize("attempts", [1, 2, 3, 4])
@pytest.mark.parametrize("expires_at", [None, BEFORE, NOW, AFTER])
@pytest.mark.parametrize("claim_expires_at", [BEFORE, NOW, AFTER])
@pytest.mark.parametrize("run_at", [BEFORE, AFTER])  # a claimed row may have either; it has been claimed
def test_a_claim_is_valid_up_to_its_deadline_and_a_lapsed_one_is_like_an_unclaimed_row(
    claim_expires_at: float, expires_at: float | None, attempts: int, run_at: float
) -> None:
    claim = held(claim_expires_at=claim_expires_at, expires_at=expires_at, attempts=attempts, run_at=run_at)
    if claim_expires_at >= NOW:
        expected = Slot.LEASED
    elif expires_at is not None and expires_at <= NOW:
        expected = Slot.EXPIRED
    else:
        expected = Slot.READY if attempts < 3 else Slot.SPENT
    assert queue.slot(claim, NOW) is expected


@pytest.mark.parametrize("expires_at", [None, BEFORE, AFTER])
@pytest.mark.parametrize("claim_expires_at", [None, BEFORE, AFTER])
def test_a_dead_row_is_dead_whatever_it_was(claim_expires_at: float | None, expires_at: float | None) -> None:
    assert queue.slot(dead(claim_expires_at=claim_expires_at, expires_at=expires_at), NOW) is Slot.BURIED


@pytest.mark.parametrize(
    ("delay", "run_at", "ready_at"),
    [
        (None, None, NOW),
        (5.0, None, NOW + 5),
        (-5.0, None, NOW - 5),
        (None, 3.0, 3.0),
        (5.0, 3.0, NOW + 5),
        (0.0, 3.0, NOW),
        (HUGE, None, HUGE),
        (-HUGE, None, -HUGE),
    ],
)
def test_a_new_row_is_ready_now_or_when_asked_and_a_delay_wins(
    delay: float | None, run_at: float | None, ready_at: float
) -> None:
    assert queue.ready_at(NOW, delay, run_at) == ready_at


@pytest.mark.parametrize(
    ("expires", "ends_at"), [(None, None), (5.0, NOW + 5), (0.0, NOW), (-1.0, NOW - 1), (HUGE, HUGE), (-HUGE, -HUGE)]
)
def test_expiry_counts_from_the_enqueue(expires: float | None, ends_at: float | None) -> None:
    assert queue.ends_at(NOW, expires) == ends_at


def test_a_claim_takes_an_attempt_a_token_and_the_whole_timeout() -> None:
    before = row()
    was = fields(before)
    claim = queue.claimed(before, "w", NOW)
    assert fields(claim) == was | {
        "state": JobState.PROCESSING,
        "attempts": 1,
        "token": 1,
        "worker_id": "w",
        "claim_expires_at": NOW + 30,
    }


@given(st.lists(st.sampled_from(["release", "retry", "lapse", "revive"]), max_size=12))
def test_no_token_is_ever_given_twice_to_a_row(ends: list[str]) -> None:
    current = row(stamps=attrs.evolve(STAMPS, max_attempts=100))
    tokens = set()
    for end in ends:
        current = queue.claimed(current, "w", NOW)
        tokens.add(current.token)
        if end == "release":
            current = queue.released(current, NOW, None)
        elif end == "retry":
            current = queue.retried(current, NOW, "x", 0.0, 0.5)
        elif end == "revive":
            current = queue.revived(queue.failed(current, NOW, "x"), NOW)
    assert len(tokens) == len(ends)


def test_a_row_that_was_claimed_once_is_left_to_its_holder_by_every_change() -> None:
    claim = held()
    was = fields(claim)
    queue.claimed(claim, "other", NOW)
    queue.extended(claim, NOW, 99.0)
    queue.failed(claim, NOW, "x")
    queue.retried(claim, NOW, "x", None, 0.5)
    queue.released(claim, NOW, 5.0)
    grave = dead()
    queue.revived(grave, NOW)
    assert fields(claim) == was
    assert fields(grave) == fields(dead())


@pytest.mark.parametrize(("extend", "deadline"), [(None, NOW + 30), (0.25, NOW + 0.25), (HUGE, HUGE)])
def test_a_heartbeat_moves_the_deadline_and_nothing_else(extend: float | None, deadline: float) -> None:
    claim = held()
    assert fields(queue.extended(claim, NOW, extend)) == fields(claim) | {"claim_expires_at": deadline}


def test_the_dead_keep_everything_and_gain_a_text_and_an_instant() -> None:
    claim = held(expires_at=NOW + 1)
    grave = {"state": JobState.DEAD, "last_error": "boom", "died_at": NOW}
    assert fields(queue.failed(claim, NOW, "boom")) == fields(claim) | grave


@pytest.mark.parametrize(("delay", "ready_at"), [(0.0, NOW), (7.0, NOW + 7), (-7.0, NOW - 7), (HUGE, HUGE)])
def test_a_retry_waits_as_told(delay: float, ready_at: float) -> None:
    claim = held()
    assert fields(queue.retried(claim, NOW, "boom", delay, 0.5)) == fields(claim) | {
        "state": JobState.PENDING,
        "worker_id": None,
        "claim_expires_at": None,
        "run_at": ready_at,
        "last_error": "boom",
    }


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_retry_that_is_told_nothing_takes_the_curve(attempts: int, jitter: float) -> None:
    again = queue.retried(held(attempts=attempts), NOW, "boom", None, jitter)
    assert again.run_at == NOW + backoff.delay(5.0, attempts, jitter)


@pytest.mark.parametrize("delay", [None, 0.0, 7.0])
@pytest.mark.parametrize("attempts", [3, 4])
def test_a_retry_without_an_attempt_left_is_a_death(attempts: int, delay: float | None) -> None:
    claim = held(attempts=attempts)
    assert fields(queue.retried(claim, NOW, "boom", delay, 0.5)) == fields(queue.failed(claim, NOW, "boom"))


@pytest.mark.parametrize(("delay", "ready_at"), [(None, NOW - 10), (0.0, NOW), (7.0, NOW + 7)])
def test_a_release_refunds_the_attempt(delay: float | None, ready_at: float) -> None:
    claim = held(attempts=3, last_error="earlier")
    assert fields(queue.released(claim, NOW, delay)) == fields(claim) | {
        "state": JobState.PENDING,
        "worker_id": None,
        "claim_expires_at": None,
        "attempts": 2,
        "run_at": ready_at,
    }


def test_a_revived_row_is_as_if_new_but_for_its_birth() -> None:
    grave = dead(attempts=3, expires_at=NOW - 5)
    assert fields(queue.revived(grave, NOW)) == fields(grave) | {
        "state": JobState.PENDING,
        "worker_id": None,
        "claim_expires_at": None,
        "attempts": 0,
        "run_at": NOW,
        "expires_at": None,
        "last_error": None,
        "died_at": None,
    }


@pytest.mark.parametrize(
    ("grave", "at"),
    [
        (dead(died_at=NOW), NOW + 60),
        (dead(died_at=NOW, stamps=attrs.evolve(STAMPS, dead_retention=0.0)), NOW),
        (dead(died_at=NOW, stamps=attrs.evolve(STAMPS, dead_retention=HUGE)), HUGE),
        (dead(stamps=attrs.evolve(STAMPS, dead_retention=None)), None),
        (row(), None),
    ],
)
def test_a_dead_row_is_kept_for_its_retention(grave: JobRow, at: float | None) -> None:
    assert queue.buried_at(grave) == at


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", ""),
        ("plain é 名 😀\n", "plain é 名 😀\n"),
        ("a\0b", "a\ufffdb"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("x" * 8_192, "x" * 8_192),
        ("x" * 8_193, "x" * 8_192),
        ("😀" * 10_000, "😀" * 8_192),
    ],
)
def test_an_error_text_is_what_every_engine_can_store(text: str, stored: str) -> None:
    assert queue.cleaned(text) == stored


@pytest.mark.parametrize("text", [None, b"x", 1, ValueError("x")])
def test_an_error_text_is_a_string(text: Any) -> None:
    with pytest.raises(TypeError, match=type(text).__name__):
        queue.cleaned(text)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError: "),
        (ValueError("a\0\ud800"), "ValueError: a\ufffd\ufffd"),
        (ValueError("x" * 9_000), "ValueError: " + "x" * 8_180),
        (Unprintable(), "Unprintable: <ZeroDivisionError while printing it>"),
    ],
)
def test_an_exceptions_text_is_its_type_and_its_message(error: Exception, text: str) -> None:
    assert queue.error_text(error) == text
