"""The list of promises is whole: it reads, each promise names tests that there are, no verb and no test is left out.

What is wrong with a list is said in words, so that a list which was spoiled on purpose shows that each defect is found.
"""

import ast
import inspect
import re
from collections import Counter
from functools import cache
from pathlib import Path

import attrs
import pytest

import alkstore_trio
from alkstore_trio.testing import conformance

ROOT = Path(__file__).parent.parent
SUITE = Path(conformance.__file__).parent
LIST = (SUITE / "promises.md").read_text(encoding="utf-8")

SECTION = re.compile(r"## ([A-Z])\. \S.*")
PROMISE = re.compile(r"\*\*([A-Z])(\d+)\.\*\* (.*)")
TEST = re.compile(r"- `([\w/.]+): (test_\w+)`")
SENTENCE = re.compile(r"[^.].*[^.]\.")
SENTENCE_WITHIN = re.compile(r"[.!?] [A-Z]")

HANDLES = ("Store", "Queue", "JobHandle", "Stream", "Outbox", "LockHandle", "Tx", "WakeReceiver", "EventReceiver")
JOINED = ("JoinedTx", "SyncJoinedTx")  # which share the verbs of `Tx`
TOKENS = ("StopToken",)


@attrs.define
class Promise:
    """A promise as it is written."""

    number: str
    sentence: str
    tests: list[str]


def parsed(text: str) -> tuple[list[Promise], list[str]]:
    """The promises of a list, and what is wrong with its lines and numbers."""
    promises: list[Promise] = []
    wrong: list[str] = []
    sections: list[str] = []
    last = 0
    for line in filter(None, text.splitlines()):
        if section := SECTION.fullmatch(line):
            if section[1] in sections:
                wrong.append(f"a second section {section[1]}")
            sections.append(section[1])
            last = 0
        elif promise := PROMISE.fullmatch(line):
            if [promise[1]] != sections[-1:] or int(promise[2]) != last + 1:
                wrong.append(f"{promise[1]}{promise[2]} stands where {sections[-1:]}{last + 1} belongs")
            last = int(promise[2])
            promises.append(Promise(promise[1] + promise[2], promise[3], []))
        elif promises and (test := TEST.fullmatch(line)):
            promises[-1].tests.append(f"{test[1]}: {test[2]}")
        elif sections:
            wrong.append(f"no promise and no test: {line}")
    return promises, wrong


@cache
def functions_in(file: Path) -> list[str]:
    """The tests of a module, by name."""
    if not file.is_file():
        return []
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in functions if name.startswith("test_")]


OF_THE_SUITE = {f"{file.stem}: {test}" for file in SUITE.glob("*.py") for test in functions_in(file)}


def verbs(handle: str) -> set[str]:
    members = inspect.getmembers(getattr(alkstore_trio, handle))
    return {name for name, member in members if not name.startswith("_") and not inspect.ismemberdescriptor(member)}


def vocabulary() -> list[tuple[str, ...]]:
    """Each thing to be mentioned, in all the ways in which it may be: a verb of two handles says whose it is."""
    own = {handle: verbs(handle) for handle in HANDLES + TOKENS}
    own |= {handle: verbs(handle) - own["Tx"] for handle in JOINED}
    owners = Counter(verb for of_one in own.values() for verb in of_one)
    ways: list[tuple[str, ...]] = [
        (f"{handle}.{verb}",) if owners[verb] > 1 else (f"{handle}.{verb}", verb)
        for handle, of_one in own.items()
        for verb in of_one
    ]
    return ways + [(name,) for name in alkstore_trio.__all__ if name not in HANDLES]  # those by their verbs


def complaints(text: str) -> list[str]:
    """All that is wrong with a list."""
    promises, wrong = parsed(text)
    standing = [promise for promise in promises if not promise.sentence.startswith("Withdrawn")]
    for promise in standing:
        if not SENTENCE.fullmatch(promise.sentence) or SENTENCE_WITHIN.search(promise.sentence):
            wrong.append(f"{promise.number} is not one sentence")
        if not promise.tests:
            wrong.append(f"{promise.number} names no test")
        if len(set(promise.tests)) != len(promise.tests):
            wrong.append(f"{promise.number} names a test twice")

    named = {test for promise in promises for test in promise.tests}
    there = set(OF_THE_SUITE)
    for file in sorted({test.partition(": ")[0] for test in named if "/" in test}):
        there |= {f"{file}: {test}" for test in functions_in(ROOT / file)}
    wrong += [f"there is no {test}" for test in sorted(named - there)]
    wrong += [f"no promise names {test}" for test in sorted(OF_THE_SUITE - named)]

    mentioned = {words for promise in standing for words in re.findall(r"`([^`]+)`", promise.sentence)}
    wrong += [f"no promise mentions {ways[0]}" for ways in vocabulary() if mentioned.isdisjoint(ways)]
    for words in sorted(mentioned):
        handle, dot, verb = words.partition(".")
        if dot and handle in alkstore_trio.__all__ and not hasattr(getattr(alkstore_trio, handle), verb):
            wrong.append(f"there is no {words}")
    return wrong


def test_the_list_of_promises_is_whole() -> None:
    assert complaints(LIST) == []
    promises, _ = parsed(LIST)
    assert len(promises) > 100


A_TEST = "- `queues: test_an_ack_deletes_the_row`\n"
MORE = f"{LIST}\n## Z. More\n\n"
THE_LAST = LIST.rpartition("\n\n**")[2]  # of its section, and of the list
SPOILED: dict[str, tuple[str, str]] = {
    "a line of something else": (f"{LIST}words\n", "no promise and no test: words"),
    "a test in another form": (f"{LIST}- queues: test_an_ack_deletes_the_row\n", "no promise and no test: - queues"),
    "a section twice": (f"{LIST}## Q. Queues\n", "a second section Q"),
    "a number twice": (f"{LIST}\n**{THE_LAST}", "stands where"),
    "a number left out": (LIST.replace("**Q2.**", "**Q200.**"), "Q200 stands where ['Q']2 belongs"),
    "a number of another section": (LIST.replace("**Q1.**", "**S1.**"), "S1 stands where ['Q']1 belongs"),
    "no full stop": (f"{MORE}**Z1.** A promise\n{A_TEST}", "Z1 is not one sentence"),
    "two sentences": (f"{MORE}**Z1.** A promise. And another.\n{A_TEST}", "Z1 is not one sentence"),
    "no test": (f"{MORE}**Z1.** A promise.\n", "Z1 names no test"),
    "a test twice": (f"{MORE}**Z1.** A promise.\n{A_TEST}{A_TEST}", "Z1 names a test twice"),
    "a test that is not there": (
        LIST.replace(A_TEST, A_TEST.replace("row", "rows")),
        "there is no queues: test_an_ack",
    ),
    "a module that is not there": (
        LIST.replace(A_TEST, A_TEST.replace("queues", "queue")),
        "there is no queue: test_an",
    ),
    "a file that is not there": (f"{LIST}- `tests/test_x.py: test_x`\n", "there is no tests/test_x.py: test_x"),
    "a test of the suite left out": (LIST.replace(A_TEST, ""), "no promise names queues: test_an_ack_deletes_the_row"),
    "a verb left out": (LIST.replace("`trim_to`", "a trim"), "no promise mentions Stream.trim_to"),
    "a verb of two left out": (LIST.replace("`Outbox.revive`", "`revive`"), "no promise mentions Outbox.revive"),
    "an export left out": (LIST.replace("`LockHeld`", "an error"), "no promise mentions LockHeld"),
    "a verb that is not there": (LIST.replace("`Outbox.revive`", "`Outbox.wake`"), "there is no Outbox.wake"),
}


@pytest.mark.parametrize(("text", "complaint"), SPOILED.values(), ids=SPOILED)
def test_a_defect_of_the_list_is_found(text: str, complaint: str) -> None:
    assert text != LIST
    assert [wrong for wrong in complaints(text) if complaint in wrong]


def test_a_promise_that_is_withdrawn_keeps_its_number_and_names_no_test() -> None:
    assert complaints(f"{MORE}**Z1.** Withdrawn in version 9.\n\n**Z2.** A promise.\n{A_TEST}") == []


def test_no_test_of_the_suite_hides_another_of_its_name() -> None:
    names = Counter(test.partition(": ")[2] for test in OF_THE_SUITE)
    assert [name for name, times in names.items() if times > 1] == []
    assert [file.name for file in SUITE.glob("*.py") if len(set(functions_in(file))) != len(functions_in(file))] == []
