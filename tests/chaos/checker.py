"""What is wrong with a history: lost, invented, held by two, fired twice, out of order, skipped, failed, stuck.

Every check is a function of the history alone. A verb that returned has done its work; one that raised, `CommitUnknown`
aside, has done nothing; of one without an end either may be true, but nothing in between.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import attrs

from .history import Call

__all__ = ["CHECKS", "Claim", "History", "Left", "violations"]

_ROUNDED = 1e-5  # seconds by which a start may be off that was reckoned from an end
_CATCH_UP = 64  # boundaries of a schedule that one tick makes up for
_SETTLED = ("ack", "retry", "release", "fail", "ack_batch")
_BY_EACH = ("enqueue", "by hand", "worker", "publisher", "transaction", "copier", "subscriber", "locker")
_BY_SOMEBODY = ("delivery", "worker of fires")
_HOSTED = ("worker", "worker of fires", "delivery", "runner")  # whom no failure ends that passes
_LETTERS = "__alkstore_outbox:letters"


@attrs.frozen
class Left:
    """What stands in the store when all is over."""

    jobs: dict[str, list[dict[str, Any]]]  # by queue: each with its id, uid, state, and when it was created
    events: list[tuple[int, Any]]  # offset and uid
    saved: dict[str, int]  # by consumer


@attrs.frozen
class Claim:
    """A job in somebody's hands, by the engine's clock."""

    id: int
    start: float
    end: float
    call: Call  # that was told of it, or a worker's handler
    by_worker: bool
    steps: int | None  # of the clock since the run began; None: it was set since the claim's reading

    @property
    def known(self) -> float:
        """When its holder knew of it, by the host's clock."""
        return self.call.began if self.by_worker else self.call.ended


@attrs.frozen(slots=False)
class History:
    """All that is known of a run."""

    calls: list[Call]
    left: Left
    boundaries: dict[str, float]  # of each schedule, the first
    intervals: dict[str, float]
    lease: float  # seconds of a lock
    actors: list[str]
    calm: float  # since when nothing was disturbed any more, by the host's monotonic clock
    crashed: list[str]  # what is said of processes that ended by themselves

    def of(self, *verbs: str) -> list[Call]:
        """The calls of some verbs."""
        return [call for call in self.calls if call.verb in verbs]

    @cached_property
    def jobs(self) -> dict[str, list[dict[str, Any]]]:
        """By queue, each sight of a job: in a claim, or left."""
        seen = {queue: list(jobs) for queue, jobs in self.left.jobs.items()}
        for call in self.calls:
            for claim in _claims_of(call):
                seen.setdefault(claim["queue"], []).append(claim)
        return seen

    @cached_property
    def ids(self) -> dict[str, dict[Any, set[int]]]:
        """By queue and uid, the ids under which it was seen."""
        ids: dict[str, dict[Any, set[int]]] = {}
        for queue, jobs in self.jobs.items():
            of_queue = ids[queue] = defaultdict(set)
            for job in jobs:
                of_queue[job["uid"]].add(job["id"])
        return ids

    @cached_property
    def claims(self) -> dict[int, list[Claim]]:
        """By job, its claims."""
        claims: dict[int, list[Claim]] = defaultdict(list)
        for call in self.of("claim", "handle"):
            for claim in _claims_of(call):
                claims[claim["id"]].append(
                    Claim(claim["id"], claim["start"], claim["end"], call, call.verb == "handle", claim["steps"])
                )
        return claims

    @cached_property
    def heartbeats(self) -> dict[tuple[int, float], list[Call]]:
        """By claim, its heartbeats."""
        heartbeats: dict[tuple[int, float], list[Call]] = defaultdict(list)
        for call in self.of("heartbeat"):
            claim = call.asked["claim"]
            heartbeats[claim["id"], claim["start"]].append(call)
        return heartbeats

    @cached_property
    def settlements(self) -> dict[tuple[int, float], list[Call]]:
        """By claim, what may have settled it, in time."""
        settlements: dict[tuple[int, float], list[Call]] = defaultdict(list)
        for call in self.of(*_SETTLED):
            if _perhaps_landed(call):
                for claim in _claims_of(call):
                    settlements[claim["id"], claim["start"]].append(call)
        return settlements


def _claims_of(call: Call) -> list[dict[str, Any]]:
    if call.verb == "claim":
        return call.answer or []
    if call.verb == "ack_batch":
        return call.asked["claims"]
    return [call.asked["claim"]] if "claim" in call.asked else []


def _landed(call: Call) -> bool:
    """Whether a settlement certainly did something to each of its claims."""
    if call.verb == "ack_batch":
        return call.answer == len(call.asked["claims"])
    return call.answer is True


def _perhaps_landed(call: Call) -> bool:
    """Whether it has done something, or perhaps: what was refused has not."""
    return call.may_stand and call.answer not in (False, 0)


# Jobs


def lost_jobs(history: History) -> Iterator[str]:
    """What was enqueued is there, unless somebody may have acked it."""
    promised = {job: call.who for call in history.of("enqueue") for job in call.answer or ()}
    seen = {job["id"]: "somebody" for jobs in history.jobs.values() for job in jobs}
    left = {job["id"] for jobs in history.left.jobs.values() for job in jobs}
    gone: set[int] = set()
    for call in history.of("ack", "ack_batch", "handle"):
        if call.outcome == "returned" if call.verb == "handle" else _perhaps_landed(call):
            gone.update(claim["id"] for claim in _claims_of(call))
    for job, who in (seen | promised).items():
        if job not in left and job not in gone:
            yield f"lost: job {job}, enqueued by {who}"


def invented_jobs(history: History) -> Iterator[str]:
    """What is seen was asked for, once, and goes by the id that was returned."""
    expected: dict[str, dict[Any, set[int] | None]] = {"jobs": {}, "by hand": {}, _LETTERS: {}}
    for call in history.of("enqueue"):
        for n, uid in enumerate(call.asked["uids"]):
            if call.may_stand:
                expected[call.asked["queue"]][uid] = {call.answer[n]} if call.outcome == "returned" else None
    for call in history.of("transact"):
        if call.may_stand:
            for queue, kind in (("jobs", "job"), (_LETTERS, "letter")):
                expected[queue][call.asked["uid"]] = {call.answer[kind]} if call.outcome == "returned" else None
    for queue, uids in expected.items():
        for uid, ids in history.ids.get(queue, {}).items():
            if uid not in uids:
                yield f"invented: job {uid}, which nobody enqueued, or in vain"
            elif len(ids) > 1:
                yield f"invented: job {uid} stood more than once, as {sorted(ids)}"
            elif uids[uid] not in (None, ids):
                yield f"invented: job {uid} stood as {ids}, not as {uids[uid]}"


def half_enqueued(history: History) -> Iterator[str]:
    """A batch is enqueued whole or not at all."""
    for call in history.of("enqueue"):
        seen = history.ids.get(call.asked["queue"], {})
        if call.outcome == "unknown" and len({uid in seen for uid in call.asked["uids"]}) > 1:
            yield f"half done: {call.asked['uids']}, enqueued by {call.who}"


def held_by_two(history: History) -> Iterator[str]:
    """A claim ends, by lapse or by its holder's doing, before another begins."""
    for claims in history.claims.values():
        for first, second in combinations(sorted(claims, key=lambda claim: claim.known), 2):
            if first.start == second.start:
                yield f"held by two: job {first.id}, one claim of {first.call.who} and {second.call.who}"
                continue
            first_end = _extended(history, first, second)
            overlap = first.start < second.end - _ROUNDED and second.start < first_end - _ROUNDED
            over = _let_go(history, first, second.known) or _lapsed(claims, first, first_end, second)
            if overlap and not (over or _shortened(history, first, second)):
                yield f"held by two: job {first.id}, {first.call.who} and {second.call.who}"


def _extended(history: History, claim: Claim, other: Claim) -> float:
    """Until when a claim was good for certain when another one was asked for."""
    end = claim.end
    for call in history.heartbeats[claim.id, claim.start]:
        if call.answer and call.ended < other.call.began and not other.by_worker:
            end = max(end, call.asked["now"] + (claim.end - claim.start))
    return end


def _lapsed(claims: list[Claim], claim: Claim, end: float, other: Claim) -> bool:
    """Whether a claim between shows that one had lapsed by then, though the clock was set back before the other."""
    return any(
        claim.known < between.call.began and between.known < other.call.began and between.start >= end - _ROUNDED
        for between in claims
    )


def _shortened(history: History, claim: Claim, other: Claim) -> bool:
    """Whether a renewal may have brought the end of a claim nearer: one by a clock that was set back."""
    renewed = claim.by_worker or history.heartbeats[claim.id, claim.start]
    return bool(renewed) and (claim.steps is None or claim.steps != other.steps)


def _let_go(history: History, claim: Claim, before: float) -> bool:
    if claim.by_worker:
        return claim.call.ended < before
    return any(call.began < before for call in history.settlements[claim.id, claim.start])


def settled_by_a_stale_claim(history: History) -> Iterator[str]:
    """Once a job is in other hands, an old claim can do nothing to it."""
    for claims in history.claims.values():
        for first, second in combinations(sorted(claims, key=lambda claim: claim.known), 2):
            if first.known > second.call.began:
                continue
            over = second.call.ended if second.by_worker else math.inf  # then its worker may have let it go
            for call in history.settlements[first.id, first.start]:
                if _landed(call) and call.began > second.known and call.ended < over:
                    yield f"settled by a stale claim: job {first.id}, {call.verb} of {call.who}"


def back_from_the_dead(history: History) -> Iterator[str]:
    """What was acked is gone for good, what was failed stays dead, and either was done once."""
    states = {job["id"]: job["state"] for jobs in history.left.jobs.values() for job in jobs}
    ended: dict[int, Call] = {}
    for call in history.of("ack", "ack_batch", "fail"):
        if not _landed(call):
            continue
        for claim in _claims_of(call):
            job = claim["id"]
            if job in ended:
                yield f"ended twice: job {job}, {ended[job].verb} of {ended[job].who} and {call.verb} of {call.who}"
            ended[job] = call
            if job in states and (call.verb != "fail" or states[job] != "dead"):
                yield f"back from the dead: job {job}, {call.verb} of {call.who}, left {states[job]}"
            for other in history.claims[job]:
                if not other.by_worker and other.call.began > call.ended:
                    yield f"back from the dead: job {job}, {call.verb} of {call.who}, claimed by {other.call.who}"


# Transactions and streams


def half_committed(history: History) -> Iterator[str]:
    """All that a transaction did stands, or nothing."""
    events = {uid for _, uid in history.left.events}
    jobs, letters = history.ids.get("jobs", {}), history.ids.get(_LETTERS, {})
    for call in history.of("transact", "discard"):
        uid = call.asked["uid"]
        stands = [uid in events, uid in jobs, uid in letters]
        wanted = {
            "returned": [call.verb == "transact"],
            "nothing": [False],
            "unknown": [False, True] if call.verb == "transact" else [False],
        }[call.outcome]
        if stands not in [[each] * 3 for each in wanted]:
            yield f"half done: {call.verb} {uid} {call.outcome}; event, job, letter: {stands}"


def lost_or_invented_events(history: History) -> Iterator[str]:
    """The stream is what was published, each event once and under the offset that was returned."""
    offsets: dict[Any, int] = {}
    for offset, uid in history.left.events:
        if uid in offsets:
            yield f"invented: event {uid} stands twice"
        offsets[uid] = offset
    asked: set[Any] = set()
    for call, uids, answer in _published(history):
        stands = [uid in offsets for uid in uids]
        if call.may_stand:
            asked.update(uids)
        if call.outcome == "returned" and answer != [offsets.get(uid) for uid in uids]:
            yield f"lost: {uids} were published as {answer}, and stand as {[offsets.get(uid) for uid in uids]}"
        if call.outcome == "unknown" and len(set(stands)) > 1:
            yield f"half done: publish {uids}"
    for uid in offsets.keys() - asked:
        yield f"invented: event {uid}, which nobody published, or in vain"


def events_out_of_order(history: History) -> Iterator[str]:
    """Offsets grow, and what was published after another's return comes after it."""
    for (offset, _), (following, _) in pairwise(history.left.events):
        if offset >= following:
            yield f"out of order: event {following} after {offset}"
    published = [(call, answer) for call, _, answer in _published(history) if call.outcome == "returned"]
    published.sort(key=lambda one: one[0].began)
    ended = sorted(published, key=lambda one: one[0].ended)
    highest, reached = 0, 0
    for call, answer in published:
        while ended[reached][0].ended < call.began:
            highest = max(highest, *ended[reached][1])
            reached += 1
        if min(answer) <= highest:
            yield f"out of order: event {min(answer)} of {call.who} was published after {highest} had returned"


def _published(history: History) -> Iterator[tuple[Call, list[Any], list[int]]]:
    for call in history.of("publish"):
        yield call, call.asked["uids"], call.answer
    for call in history.of("transact"):
        yield call, [call.asked["uid"]], [call.answer["offset"]] if call.answer else []


def copied_otherwise(history: History) -> Iterator[str]:
    """What a consumer does in one transaction with its offset is done to each event once, in order."""
    for copier in {call.asked["consumer"] for call in history.of("copy")}:
        copies = [job["uid"] for job in sorted(history.left.jobs.get(copier, ()), key=lambda job: job["id"])]
        saved = history.left.saved.get(copier, 0)
        wanted = [offset for offset, _ in history.left.events if offset <= saved]
        if copies != wanted:
            wrong = Counter(copies) - Counter(wanted) or Counter(wanted) - Counter(copies) or "in another order"
            yield f"skipped or doubled: {copier} up to {saved}: {wrong}"
        promised = (call.answer for call in history.of("copy") if call.asked["consumer"] == copier and call.answer)
        if lost := {offset for offsets in promised for offset in offsets} - set(copies):
            yield f"lost: {copier}'s copies of {sorted(lost)}"


def skipped_by_a_subscriber(history: History) -> Iterator[str]:
    """A subscription begins behind what was saved, and has every event from there on, in order."""
    following = {offset: after for (offset, _), (after, _) in pairwise([(0, None), *history.left.events])}
    received: dict[str, list[Call]] = defaultdict(list)
    for call in history.of("received"):
        received[call.answer["subscription"]].append(call)
    saves: dict[str, list[Call]] = defaultdict(list)
    for call in history.of("save"):
        if call.may_stand:
            saves[call.asked["consumer"]].append(call)
    for call in history.of("subscribed"):
        name, consumer = call.answer["subscription"], call.answer["consumer"]
        offsets = [one.answer["offset"] for one in received[name]]
        if not offsets:
            continue
        first = received[name][0]
        before = {0} | {save.asked["offset"] for save in saves[consumer] if save.began < first.began}
        least = max([0, *(save.asked["offset"] for save in saves[consumer] if save.answer and save.ended < call.began)])
        if offsets[0] not in {following.get(offset) for offset in before if offset >= least}:
            yield f"skipped: {consumer} began at {offsets[0]}, having saved {least}"
        for offset, after in pairwise(offsets):
            if following.get(offset) != after:
                yield f"skipped: {consumer} received {after} after {offset}"


# Locks


def locked_by_two(history: History) -> Iterator[str]:
    """A hold lasts until it lapses or is released; tokens grow; an old hold can do nothing more."""
    holds = sorted((call for call in history.of("try_lock") if call.answer is not None), key=lambda hold: hold.answer)
    doings: dict[int, list[Call]] = defaultdict(list)
    for call in history.of("renew", "unlock"):
        doings[call.asked["token"]].append(call)
    clocks: dict[int, dict[str, Any]] = {}
    for call in history.of("read_clock"):
        clocks.setdefault(call.answer["token"], call.answer)
    for first, second in combinations(holds, 2):
        if second.answer == first.answer or second.ended < first.began:
            yield f"fencing: {first.who} got {first.answer} and {second.who} {second.answer}, not in that order"
            continue
        for doing in doings[first.answer]:
            if doing.answer is True and doing.began > second.ended:
                yield f"locked by two: {doing.verb} of {first.who} after {second.who} had got the lock"
        if any(
            doing.verb == "unlock" and _perhaps_landed(doing) and doing.began < second.ended
            for doing in doings[first.answer]
        ):
            continue
        then = clocks.get(second.answer)
        if then is None:
            continue
        for until in [
            first,
            *(doing for doing in doings[first.answer] if doing.verb == "renew" and doing.answer is True),
        ]:
            steady = until.asked["steps"] == then["steps"]
            if steady and then["now"] < until.asked["now"] + history.lease - _ROUNDED:
                yield f"locked by two: {second.who} got the lock while {first.who} held it"


# Schedules


def fired_otherwise(history: History) -> Iterator[str]:
    """Each boundary fires once, and none is left out but those past the cap."""
    fired: dict[str, dict[int, float]] = defaultdict(dict)
    for job in history.jobs.get("fired", ()):
        fired[job["uid"]][job["id"]] = job["created"]
    for name, boundary in history.boundaries.items():
        next_at, interval = boundary, history.intervals[name]
        for at, times in sorted(Counter(fired[name].values()).items()):
            passed = [math.floor((at - next_at + rounded) / interval) + 1 for rounded in (-_ROUNDED, _ROUNDED)]
            wanted = [min(each, _CATCH_UP) for each in passed]
            if times not in wanted:
                yield f"fired otherwise: {name} {times} times at {at}, not {wanted[0]}"
            next_at += interval * passed[times == wanted[1]]


# Failures


def failed_otherwise(history: History) -> Iterator[str]:
    """What fails says that it passes, and ends nobody who is hosted."""
    for call in history.of("failed"):
        error = call.answer["error"]
        if not call.answer["passes"]:
            yield f"failed otherwise: {call.who}, as if for good, by {error}"
        elif call.who.partition(" ")[2] in _HOSTED:
            yield f"failed otherwise: {call.who} was ended by {error}"


# Life


def stuck(history: History) -> Iterator[str]:
    """Once nothing is disturbed any more, everybody goes on."""
    doing: dict[str, set[str]] = defaultdict(set)
    for call in history.calls:
        if call.began > history.calm and call.outcome == "returned" and call.verb not in ("failed", "subscribed"):
            name, task = call.who.split(" ", 1)
            doing[name.split("-")[0]].add(task)
    for actor in history.actors:
        for task in _BY_EACH:
            if task not in doing[actor]:
                yield f"stuck: {task} of {actor}"
    for task in _BY_SOMEBODY:
        if not any(task in tasks for tasks in doing.values()):
            yield f"stuck: {task}"
    if not any(call.answer for call in history.of("try_lock") if call.began > history.calm):
        yield "stuck: nobody gets the lock any more"
    fired = {call.asked["claim"]["uid"] for call in history.of("handle") if call.began > history.calm}
    for name in history.boundaries.keys() - fired:
        yield f"stuck: the schedule {name!r} no longer fires"
    waiting = {job for call in history.of("enqueue") if call.ended < history.calm for job in call.answer or ()}
    for job in history.left.jobs.get("jobs", ()):
        if job["id"] in waiting and job["state"] != "dead":
            yield f"stuck: job {job['id']} is {job['state']}"


CHECKS: tuple[Callable[[History], Iterable[str]], ...] = (
    lost_jobs,
    invented_jobs,
    half_enqueued,
    held_by_two,
    settled_by_a_stale_claim,
    back_from_the_dead,
    half_committed,
    lost_or_invented_events,
    events_out_of_order,
    copied_otherwise,
    skipped_by_a_subscriber,
    locked_by_two,
    fired_otherwise,
    failed_otherwise,
    stuck,
)


def violations(history: History) -> list[str]:
    """All that is wrong with it."""
    return [*history.crashed, *(violation for check in CHECKS for violation in check(history))]
