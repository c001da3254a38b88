"""The list of mutants fits the code as it is. That each is caught is tried by hand: ``python -m tests.mutants``."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, PACKAGE, Mutant

TESTS = Path(__file__).parent
SUITE = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "testing" / "conformance").glob("*.py"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_a_text_that_is_there_once(mutant: Mutant) -> None:
    assert (PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.old != mutant.new


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_are_to_catch_a_mutant_are_there(mutant: Mutant) -> None:
    for test in mutant.tests.split():
        file, _, name = test.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in (SUITE if file.startswith("conformance/") else text)


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []
