"""The checker of histories finds what is planted in one, and nothing in one that is as it should be."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from alkstore_trio import CommitUnknown, DatabaseError
from tests.chaos import checker
from tests.chaos.checker import CHECKS, History, Left
from tests.chaos.history import Call, Outcome, Recorder, load
from tests.chaos.plan import ENGINES, Engine, plan

_LEASE = 1.0
_LETTERS = "__alkstore_outbox:letters"

_JOB = {"queue": "jobs", "id": 1, "uid": "a", "start": 10.0, "end": 11.0, "created": 9.0, "steps": 0}
_AGAIN = {**_JOB, "start": 11.5, "end": 12.5}
_TOO_SOON = {**_JOB, "start": 10.5, "end": 11.5}


def call(
    began: float,
    verb: str,
    asked: dict[str, Any] | None = None,
    answer: Any = None,
    *,
    who: str = "p0-1 task",
    lasts: float = 0.5,
    outcome: Outcome = "returned",
) -> Call:
    return Call(who, verb, asked or {}, began, began + lasts, outcome, answer)


def enqueued(began: float, uid: str = "a", job: int = 1, outcome: Outcome = "returned") -> Call:
    return call(
        began, "enqueue", {"queue": "jobs", "uids": [uid]}, [job] if outcome == "returned" else None, outcome=outcome
    )


def taken(began: float, claim: dict[str, Any], who: str = "p0-1 by hand") -> Call:
    return call(began, "claim", {"queue": "jobs"}, [claim], who=who)


def settled(
    began: float, verb: str, claim: dict[str, Any], answer: bool | None = True, outcome: Outcome = "returned"
) -> Call:
    return call(began, verb, {"claim": claim}, answer, outcome=outcome)


def handled(began: float, claim: dict[str, Any], lasts: float = 0.5, outcome: Outcome = "returned") -> Call:
    return call(began, "handle", {"claim": claim}, lasts=lasts, outcome=outcome)


def published(began: float, uid: str, offset: int, lasts: float = 0.5) -> Call:
    return call(began, "publish", {"uids": [uid]}, [offset], lasts=lasts)


def transacted(began: float, verb: str = "transact", outcome: Outcome = "returned") -> Call:
    answer = {"job": 1, "letter": 2, "offset": 1} if outcome == "returned" else None
    return call(began, verb, {"uid": "t"}, answer, outcome=outcome)


def received(began: float, offset: int) -> Call:
    return call(began, "received", answer={"subscription": "s", "offset": offset})


def locked(began: float, token: int | None, now: float, who: str = "p0-1 locker", steps: int = 0) -> Call:
    return call(began, "try_lock", {"owner": who, "steps": steps, "now": now}, token, who=who)


def clock_read(began: float, token: int, now: float, steps: int = 0) -> Call:
    return call(began, "read_clock", answer={"token": token, "now": now, "steps": steps})


def unlocked(began: float, token: int, answer: bool = True) -> Call:
    return call(began, "unlock", {"token": token}, answer)


def failed(task: str, *, passes: bool = True) -> Call:
    return call(1, "failed", answer={"error": "DatabaseError('away')", "passes": passes}, who=f"p0-1 {task}")


def jobs(*ids: int, queue: str = "jobs", uid: str = "a", state: str = "pending") -> dict[str, list[dict[str, Any]]]:
    return {queue: [{"id": each, "uid": uid, "state": state, "created": 9.0} for each in ids]}


def lively(*others: Call, without: str = "") -> list[Call]:
    """What one who is not stuck does, but for one task, verb or schedule."""
    calls = [call(200, "any", who=f"p0-1 {task}") for task in (*checker._BY_EACH, *checker._BY_SOMEBODY)]
    calls += [locked(200, 1, 10.0), handled(200, {**_JOB, "queue": "fired", "uid": "often"})]
    return [each for each in calls if without not in (each.who.partition(" ")[2], each.verb)] + list(others)


SUBSCRIBED = call(5, "subscribed", answer={"subscription": "s", "consumer": "c"})
SAVED = call(3, "save", {"consumer": "c", "offset": 2}, True)
EVENTS: list[tuple[int, Any]] = [(1, "e"), (2, "f"), (4, "g"), (5, "h")]

NOTHING = Left({}, [], {})
FIVE_AT_ONCE = {
    "fired": [{"id": each, "uid": "often", "created": 105.5} for each in range(1, 7)],
}


@attrs.frozen
class Planted:
    """Something wrong with a history, for one check; the words that it is found by, or none if all is well."""

    check: Callable[[History], Any]
    calls: list[Call]
    words: str | None
    left: Left = NOTHING


PLANTED = {
    "a job is there": Planted(checker.lost_jobs, [enqueued(1)], None, Left(jobs(1), [], {})),
    "a job is gone": Planted(checker.lost_jobs, [enqueued(1)], "lost: job 1"),
    "a job was acked": Planted(checker.lost_jobs, [enqueued(1), taken(2, _JOB), settled(3, "ack", _JOB)], None),
    "a job was released, and is gone": Planted(
        checker.lost_jobs, [enqueued(1), taken(2, _JOB), settled(3, "release", _JOB)], "lost: job 1"
    ),
    "a job's handler raised, and it is gone": Planted(
        checker.lost_jobs, [enqueued(1), handled(2, _JOB, outcome="nothing")], "lost: job 1"
    ),
    "a job's handler returned": Planted(checker.lost_jobs, [enqueued(1), handled(2, _JOB)], None),
    "a job that was only seen is gone": Planted(checker.lost_jobs, [taken(2, _JOB)], "lost: job 1"),
    "a job whose ack was refused is gone": Planted(
        checker.lost_jobs, [enqueued(1), taken(2, _JOB), settled(3, "ack", _JOB, False)], "lost: job 1"
    ),
    "a job whose ack never ended": Planted(
        checker.lost_jobs, [enqueued(1), taken(2, _JOB), settled(3, "ack", _JOB, None, "unknown")], None
    ),
    "a job of a batch whose acks were all refused is gone": Planted(
        checker.lost_jobs, [enqueued(1), call(3, "ack_batch", {"claims": [_JOB]}, 0)], "lost: job 1"
    ),
    "a job whose enqueueing never ended": Planted(
        checker.invented_jobs, [enqueued(1, outcome="unknown")], None, Left(jobs(1), [], {})
    ),
    "a job whose enqueueing raised": Planted(
        checker.invented_jobs, [enqueued(1, outcome="nothing")], "invented", Left(jobs(1), [], {})
    ),
    "a job that nobody enqueued": Planted(checker.invented_jobs, [taken(2, _JOB)], "invented: job a"),
    "a job that stands twice": Planted(
        checker.invented_jobs, [enqueued(1)], "more than once", Left(jobs(1, 2), [], {})
    ),
    "a job under another id": Planted(checker.invented_jobs, [enqueued(1)], "not as", Left(jobs(2), [], {})),
    "a letter": Planted(checker.invented_jobs, [transacted(1)], None, Left(jobs(2, queue=_LETTERS, uid="t"), [], {})),
    "a letter that nobody wrote": Planted(
        checker.invented_jobs, [], "invented: job t", Left(jobs(2, queue=_LETTERS, uid="t"), [], {})
    ),
    "a letter that stands twice": Planted(
        checker.invented_jobs, [transacted(1)], "more than once", Left(jobs(2, 3, queue=_LETTERS, uid="t"), [], {})
    ),
    "half a batch": Planted(
        checker.half_enqueued,
        [call(1, "enqueue", {"queue": "jobs", "uids": ["a", "b"]}, outcome="unknown")],
        "half done",
        Left(jobs(1), [], {}),
    ),
    "a claim after a lapse": Planted(checker.held_by_two, [taken(2, _JOB), taken(4, _AGAIN)], None),
    "a claim in a claim": Planted(checker.held_by_two, [taken(2, _JOB), taken(4, _TOO_SOON)], "held by two"),
    "a claim after a release": Planted(
        checker.held_by_two, [taken(2, _JOB), settled(3, "release", _JOB), taken(4, _TOO_SOON)], None
    ),
    "a claim after a release that was refused": Planted(
        checker.held_by_two,
        [taken(2, _JOB), settled(3, "release", _JOB, False), taken(4, _TOO_SOON)],
        "held by two",
    ),
    "a claim before a release": Planted(
        checker.held_by_two, [taken(2, _JOB), taken(4, _TOO_SOON), settled(5, "release", _JOB)], "held by two"
    ),
    "one claim of two": Planted(checker.held_by_two, [taken(2, _JOB), taken(2, _JOB, "p1-2 by hand")], "one claim"),
    "a claim that was renewed": Planted(
        checker.held_by_two,
        [
            taken(2, _JOB),
            call(3, "heartbeat", {"claim": _JOB, "steps": 0, "now": 10.9}, True),
            taken(4, _AGAIN),
        ],
        "held by two",
    ),
    "a claim that was renewed by a clock that was set back": Planted(
        checker.held_by_two,
        [
            taken(2, _JOB),
            call(3, "heartbeat", {"claim": _JOB, "steps": 2, "now": 4.0}, True),
            taken(4, {**_TOO_SOON, "steps": None}),
        ],
        None,
    ),
    "a claim that was not, while the clock was set back": Planted(
        checker.held_by_two, [taken(2, _JOB), taken(4, {**_TOO_SOON, "steps": None})], "held by two"
    ),
    "a claim after a lapse and another claim, when the clock had been set back": Planted(
        checker.held_by_two,
        [taken(2, _JOB), taken(4, _AGAIN), settled(5, "release", _AGAIN), taken(6, {**_TOO_SOON, "steps": 1})],
        None,
    ),
    "a claim in a claim, and another of a later reading before both": Planted(
        checker.held_by_two,
        [
            taken(1, {**_JOB, "start": 100.0, "end": 101.0}),
            settled(2, "release", {**_JOB, "start": 100.0, "end": 101.0}),
            taken(4, {**_JOB, "steps": 1}),
            taken(6, {**_TOO_SOON, "steps": 1}),
        ],
        "held by two",
    ),
    "a claim in a claim, and another after its lapse": Planted(
        checker.held_by_two,
        [taken(2, _JOB), taken(4, {**_TOO_SOON, "steps": 1}), settled(5, "release", _TOO_SOON), taken(6, _AGAIN)],
        "held by two",
    ),
    "a claim while a handler runs": Planted(
        checker.held_by_two, [handled(2, _JOB, lasts=9), taken(4, _TOO_SOON)], "held by two"
    ),
    "a claim after a handler": Planted(checker.held_by_two, [handled(2, _JOB), taken(4, _TOO_SOON)], None),
    "a stale ack": Planted(
        checker.settled_by_a_stale_claim,
        [taken(2, _JOB), taken(4, _AGAIN), settled(5, "ack", _JOB)],
        "settled by a stale claim",
    ),
    "a stale ack while a handler runs": Planted(
        checker.settled_by_a_stale_claim,
        [taken(2, _JOB), handled(4, _AGAIN, lasts=3), settled(5, "ack", _JOB)],
        "settled by a stale claim",
    ),
    "an ack after a handler": Planted(
        checker.settled_by_a_stale_claim, [taken(2, _JOB), handled(4, _AGAIN), settled(5, "ack", _JOB)], None
    ),
    "a stale ack that was refused": Planted(
        checker.settled_by_a_stale_claim, [taken(2, _JOB), taken(4, _AGAIN), settled(5, "ack", _JOB, False)], None
    ),
    "an acked job that is left": Planted(
        checker.back_from_the_dead, [settled(3, "ack", _JOB)], "back from the dead", Left(jobs(1), [], {})
    ),
    "an acked job that is claimed": Planted(
        checker.back_from_the_dead, [settled(3, "ack", _JOB), taken(4, _AGAIN)], "claimed by"
    ),
    "two acks": Planted(checker.back_from_the_dead, [settled(3, "ack", _JOB), settled(4, "ack", _JOB)], "ended twice"),
    "a failed job": Planted(
        checker.back_from_the_dead, [settled(3, "fail", _JOB)], None, Left(jobs(1, state="dead"), [], {})
    ),
    "a failed job that is left alive": Planted(
        checker.back_from_the_dead, [settled(3, "fail", _JOB)], "left pending", Left(jobs(1), [], {})
    ),
    "a failed job that is claimed": Planted(
        checker.back_from_the_dead, [settled(3, "fail", _JOB), taken(4, _AGAIN)], "claimed by"
    ),
    "an ack of a failed job": Planted(
        checker.back_from_the_dead, [settled(3, "fail", _JOB), settled(4, "ack", _JOB)], "ended twice"
    ),
    "a whole transaction": Planted(
        checker.half_committed,
        [transacted(1)],
        None,
        Left(jobs(1, uid="t") | jobs(2, queue=_LETTERS, uid="t"), [(1, "t")], {}),
    ),
    "half a transaction": Planted(
        checker.half_committed, [transacted(1, outcome="unknown")], "half done", Left(jobs(1, uid="t"), [], {})
    ),
    "a transaction that returned, in vain": Planted(checker.half_committed, [transacted(1)], "half done"),
    "a transaction that was discarded, in vain": Planted(
        checker.half_committed,
        [transacted(1, "discard")],
        "half done",
        Left(jobs(1, uid="t") | jobs(2, queue=_LETTERS, uid="t"), [(1, "t")], {}),
    ),
    "an event": Planted(checker.lost_or_invented_events, [published(1, "e", 1)], None, Left({}, [(1, "e")], {})),
    "an event that is gone": Planted(checker.lost_or_invented_events, [published(1, "e", 1)], "lost"),
    "an event that was renumbered": Planted(
        checker.lost_or_invented_events, [published(1, "e", 1)], "lost", Left({}, [(2, "e")], {})
    ),
    "an event twice": Planted(
        checker.lost_or_invented_events, [published(1, "e", 2)], "stands twice", Left({}, [(1, "e"), (2, "e")], {})
    ),
    "an event that nobody published": Planted(
        checker.lost_or_invented_events, [], "nobody published", Left({}, [(1, "e")], {})
    ),
    "half a page": Planted(
        checker.lost_or_invented_events,
        [call(1, "publish", {"uids": ["e", "f"]}, outcome="unknown")],
        "half done",
        Left({}, [(1, "e")], {}),
    ),
    "events of two at once": Planted(
        checker.events_out_of_order, [published(1, "e", 2, lasts=2), published(2, "f", 1)], None
    ),
    "a later event with a lower offset": Planted(
        checker.events_out_of_order, [published(1, "e", 2), published(2, "f", 1)], "out of order"
    ),
    "a stream that does not ascend": Planted(
        checker.events_out_of_order, [], "out of order", Left({}, [(2, "e"), (1, "f")], {})
    ),
    "copies": Planted(
        checker.copied_otherwise,
        [call(1, "copy", {"consumer": "c"}, [1, 2])],
        None,
        Left({"c": [{"id": 1, "uid": 1}, {"id": 2, "uid": 2}]}, EVENTS, {"c": 2}),
    ),
    "a copy that is missing": Planted(
        checker.copied_otherwise,
        [call(1, "copy", {"consumer": "c"}, outcome="unknown")],
        "skipped or doubled",
        Left({"c": [{"id": 1, "uid": 1}]}, EVENTS, {"c": 2}),
    ),
    "a copy twice": Planted(
        checker.copied_otherwise,
        [call(1, "copy", {"consumer": "c"}, outcome="unknown")],
        "skipped or doubled",
        Left({"c": [{"id": 1, "uid": 1}, {"id": 2, "uid": 1}]}, EVENTS, {"c": 1}),
    ),
    "a copy that had returned": Planted(
        checker.copied_otherwise, [call(1, "copy", {"consumer": "c"}, [1])], "lost", Left({}, EVENTS, {})
    ),
    "a subscription": Planted(
        checker.skipped_by_a_subscriber,
        [SAVED, SUBSCRIBED, received(6, 4), received(7, 5)],
        None,
        Left({}, EVENTS, {}),
    ),
    "a subscription with a gap": Planted(
        checker.skipped_by_a_subscriber,
        [SUBSCRIBED, received(6, 1), received(7, 4)],
        "received 4 after 1",
        Left({}, EVENTS, {}),
    ),
    "a subscription that begins late": Planted(
        checker.skipped_by_a_subscriber, [SAVED, SUBSCRIBED, received(6, 5)], "began at 5", Left({}, EVENTS, {})
    ),
    "a subscription that begins early": Planted(
        checker.skipped_by_a_subscriber, [SAVED, SUBSCRIBED, received(6, 2)], "began at 2", Left({}, EVENTS, {})
    ),
    "a lock after a lapse": Planted(
        checker.locked_by_two, [locked(1, 1, 10.0), locked(3, 2, 11.2), clock_read(4, 2, 11.3)], None
    ),
    "a lock in a lock": Planted(
        checker.locked_by_two,
        [locked(1, 1, 10.0), locked(3, 2, 10.5), clock_read(4, 2, 10.6)],
        "locked by two",
    ),
    "a lock while the clock was set": Planted(
        checker.locked_by_two, [locked(1, 1, 10.0), locked(3, 2, 10.5, steps=2), clock_read(4, 2, 10.6, 2)], None
    ),
    "a lock after an unlock": Planted(
        checker.locked_by_two,
        [
            locked(1, 1, 10.0),
            unlocked(2, 1),
            locked(3, 2, 10.5),
            clock_read(4, 2, 10.6),
        ],
        None,
    ),
    "a lock after an unlock that was refused": Planted(
        checker.locked_by_two,
        [locked(1, 1, 10.0), unlocked(2, 1, False), locked(3, 2, 10.5), clock_read(4, 2, 10.6)],
        "locked by two",
    ),
    "a lock for two at once": Planted(
        checker.locked_by_two,
        [locked(1, 1, 10.0), clock_read(2, 1, 10.1), locked(1.2, 2, 10.0), clock_read(2, 2, 10.1)],
        "locked by two",
    ),
    "a lock for two at once, by one token": Planted(
        checker.locked_by_two, [locked(1, 1, 10.0), locked(1.2, 1, 10.0)], "fencing"
    ),
    "a lock for the second of two at once, after the first's unlock": Planted(
        checker.locked_by_two,
        [locked(1, 2, 10.1), locked(1.2, 1, 10.0), unlocked(1.3, 1), clock_read(2, 2, 10.2)],
        None,
    ),
    "a renewal while another takes the lock": Planted(
        checker.locked_by_two,
        [
            locked(1, 1, 10.0),
            call(3, "renew", {"token": 1, "steps": 0, "now": 10.9}, True),
            locked(3.2, 2, 10.9),
            clock_read(4, 2, 11.3),
        ],
        "locked by two",
    ),
    "a lock that was renewed": Planted(
        checker.locked_by_two,
        [
            locked(1, 1, 10.0),
            call(2, "renew", {"token": 1, "steps": 0, "now": 10.9}, True),
            locked(3, 2, 11.2),
            clock_read(4, 2, 11.3),
        ],
        "locked by two",
    ),
    "a renewal by whom the lock was taken from": Planted(
        checker.locked_by_two,
        [
            locked(1, 1, 10.0),
            locked(3, 2, 11.2),
            clock_read(4, 2, 11.3),
            call(5, "renew", {"token": 1, "steps": 0, "now": 11.9}, True),
        ],
        "locked by two: renew",
    ),
    "a token that does not grow": Planted(checker.locked_by_two, [locked(1, 2, 10.0), locked(3, 1, 12.0)], "fencing"),
    "boundaries": Planted(checker.fired_otherwise, [], None, Left(FIVE_AT_ONCE, [], {})),
    "a boundary twice": Planted(
        checker.fired_otherwise,
        [handled(1, {**_JOB, "queue": "fired", "id": 9, "uid": "often", "created": 105.5})],
        "7 times",
        Left(FIVE_AT_ONCE, [], {}),
    ),
    "a boundary that was left out": Planted(
        checker.fired_otherwise,
        [],
        "1 times",
        Left({"fired": [{"id": 1, "uid": "often", "created": 101.5}]}, [], {}),
    ),
    "a verb that failed, for now": Planted(checker.failed_otherwise, [failed("publisher")], None),
    "a verb that failed for good": Planted(
        checker.failed_otherwise,
        [failed("publisher", passes=False)],
        "failed otherwise: p0-1 publisher, as if for good",
    ),
    "a worker that a failure ended": Planted(
        checker.failed_otherwise, [failed("worker of fires")], "failed otherwise: p0-1 worker of fires was ended"
    ),
    "everybody goes on": Planted(checker.stuck, lively(), None),
    "somebody who has done nothing since": Planted(checker.stuck, lively(without="copier"), "stuck: copier of p0"),
    "a delivery that nobody makes": Planted(checker.stuck, lively(without="delivery"), "stuck: delivery"),
    "a lock that nobody gets": Planted(
        checker.stuck, lively(locked(200, None, 10.0), without="try_lock"), "stuck: nobody gets the lock"
    ),
    "a schedule that does not fire": Planted(checker.stuck, lively(without="handle"), "stuck: the schedule 'often'"),
    "a job that waits": Planted(checker.stuck, lively(enqueued(1)), "stuck: job 1 is pending", Left(jobs(1), [], {})),
    "a job that waits since the calm": Planted(checker.stuck, lively(enqueued(150)), None, Left(jobs(1), [], {})),
    "a job that died": Planted(checker.stuck, lively(enqueued(1)), None, Left(jobs(1, state="dead"), [], {})),
}


def history_of(planted: Planted) -> History:
    return History(planted.calls, planted.left, {"often": 100.0}, {"often": 1.0}, _LEASE, ["p0"], 100.0, [])


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_what_is_planted_is_found_and_nothing_else(planted: Planted) -> None:
    found = list(planted.check(history_of(planted)))
    if planted.words is None:
        assert found == []
    else:
        assert any(planted.words in violation for violation in found)


def test_something_is_planted_for_every_check() -> None:
    assert {planted.check for planted in PLANTED.values() if planted.words} == set(CHECKS)


def test_all_checks_are_made_and_a_crash_is_a_violation_too() -> None:
    planted = PLANTED["a job that nobody enqueued"]
    found = checker.violations(attrs.evolve(history_of(planted), crashed=["crashed: p0-1"]))
    assert found[0] == "crashed: p0-1"
    assert {"lost", "invented", "stuck"} <= {violation.split(":")[0] for violation in found}


# Histories


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with (tmp_path / "p0-1.jsonl").open("ab") as file:
        yield Recorder("p0-1", file.fileno())


def test_a_call_is_recorded_with_what_came_of_it(recorder: Recorder, tmp_path: Path) -> None:
    with recorder.call("t", "returns", number=1) as given:
        given.answer = [1]
    with pytest.raises(DatabaseError), recorder.call("t", "raises"):
        raise DatabaseError("away")
    with pytest.raises(CommitUnknown), recorder.call("t", "cannot tell"):
        raise CommitUnknown("away")
    recorder.note("t", "seen", {"offset": 1})
    recorder.failure("t", DatabaseError("away"))
    recorder.failure("t", CommitUnknown("away"))
    unending = recorder.call("t", "never ends")
    unending.__enter__()
    returns, raises, cannot_tell, seen, for_good, passing, never_ends = load(tmp_path)
    assert (returns.who, returns.verb, returns.asked) == ("p0-1 t", "returns", {"number": 1})
    assert (returns.outcome, returns.answer) == ("returned", [1])
    assert returns.began <= returns.ended <= raises.began
    assert (raises.outcome, raises.may_stand) == ("nothing", False)
    assert (cannot_tell.outcome, cannot_tell.may_stand) == ("unknown", True)
    assert (seen.outcome, seen.answer, seen.ended) == ("returned", {"offset": 1}, seen.began)
    assert (for_good.verb, for_good.answer["passes"], passing.answer["passes"]) == ("failed", False, True)
    assert "DatabaseError('away')" in for_good.answer["error"]
    assert (never_ends.outcome, never_ends.ended) == ("unknown", math.inf)


# Plans


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_follows_from_its_seed_and_ends_in_time(engine: Engine) -> None:
    faults = plan(engine, 40, 7)
    assert faults == plan(engine, 40, 7)
    assert faults != plan(engine, 40, 8)
    assert len(faults) > 10
    assert all(0 < fault.at <= fault.at + fault.lasts <= 40.001 for fault in faults)
