"""The grammar of a schedule's spec, as a matrix."""

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore_trio import InvalidSpec
from alkstore_trio._rules.spec import interval

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
LONGEST = 3_650 * 86_400


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("number", ["1", "2", "90", "007"])
def test_a_spec_is_every_so_often_whatever_blanks_are_around(number: str, unit: str) -> None:
    for before, between, behind in product(["", " ", "\t", " \t "], [" ", "\t", "  \t"], ["", " ", "\t\t"]):
        spec = f"{before}@every{between}{number}{unit}{behind}"
        assert interval(spec) == int(number) * UNITS[unit], spec


@pytest.mark.parametrize(
    "spec",
    [
        "",
        " ",
        "@every",
        "@every ",
        "@every5s",  # no blank
        "@every 5",  # no unit
        "@every s",
        "@every 5 s",  # a blank before the unit
        "@every 5\ts",
        "@every 0s",
        "@every 00d",
        "@every -5s",
        "@every +5s",
        "@every 1.5s",
        "@every 1e3s",
        "@every 1_000s",
        "@every 0x5s",
        "@every 5S",
        "@every 5M",
        "@every 5w",
        "@every 5ms",
        "@every 5min",
        "@every 5sec",
        "@every 1h30m",
        "@every 5s 5s",
        "@every 5s,",
        "@Every 5s",
        "@EVERY 5s",
        "every 5s",
        "@ every 5s",
        "@@every 5s",
        "@every\n5s",
        "@every 5s\n",
        "\n@every 5s",
        "@every\u00a05s",
        "@every\u30005s",
        "@every 5s\0",
        "@every \u0665s",  # an Arabic-Indic five
        "@every \uff15s",  # a fullwidth five
        "@every \u00b2s",  # a superscript two
        "@every \u09ea\u09e8s",
        "@hourly",
        "@daily",
        "* * * * *",
        "*/5 * * * *",
        "0 0 1 1 *",
        "5s",
        "@every 3651d",
        f"@every {LONGEST + 1}s",
        "@every 87601h",
        "@every 5256001m",
        "@every " + "9" * 10_000 + "s",
    ],
)
def test_anything_else_is_refused_and_told(spec: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        interval(spec)
    assert refusal.value.spec == spec


@pytest.mark.parametrize("spec", ["@every 3650d", "@every 87600h", "@every 5256000m", f"@every {LONGEST}s"])
def test_ten_years_are_the_longest(spec: str) -> None:
    assert interval(spec) == LONGEST


def test_leading_zeros_count_for_nothing_however_many() -> None:
    assert interval("@every " + "0" * 10_000 + "7s") == 7


@pytest.mark.parametrize("spec", [None, 5, b"@every 5s", True, ["@every 5s"]])
def test_a_spec_that_is_no_string_is_a_type_error(spec: object) -> None:
    with pytest.raises(TypeError, match=type(spec).__name__):
        interval(spec)  # type: ignore[arg-type]  # what is refused


@given(st.text() | st.from_regex(r"@every [0-9smhd ]{1,8}"))
def test_no_text_is_anything_but_an_interval_or_refused(text: str) -> None:
    with suppress(InvalidSpec):
        assert 0 < interval(text) <= LONGEST
