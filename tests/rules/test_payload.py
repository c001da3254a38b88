"""Payloads: one compact text, made once."""

import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore_trio import CodecError
from alkstore_trio._rules.payload import convert, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
LONGEST_INT = 10 ** (sys.get_int_max_str_digits() - 1)


class Colour(IntEnum):
    RED = 1


@given(JSON)
def test_what_json_carries_comes_back_equal_from_the_standard_text(value: Any) -> None:
    body = encode(value)
    assert body == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert decode(body) == value


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (-0.0, "-0.0"),
        (1e100, "1e+100"),
        ("é名😀", '"é名😀"'),
        ("a\0b", '"a\\u0000b"'),
        ('"\\\n', '"\\"\\\\\\n"'),
        ({"b": 1, "a": [1, {"c": None}]}, '{"b":1,"a":[1,{"c":null}]}'),
        ([], "[]"),
        ({}, "{}"),
        (OrderedDict(z=1, a=2), '{"z":1,"a":2}'),
        # Python's own coercions
        ((1, 2), "[1,2]"),
        ({1: "a", 2.5: "b", False: "c", None: "d"}, '{"1":"a","2.5":"b","false":"c","null":"d"}'),
        (Colour.RED, "1"),
    ],
)
def test_the_text_is_compact_unescaped_and_in_key_order(value: object, body: str) -> None:
    assert encode(value) == body


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        [1, {"a": math.nan}],
        {math.inf: 1},
        "\ud800",
        ["a\udfffb"],
        {"\ud800": 1},
        b"bytes",
        {1, 2},
        pytest.param(object(), id="object()"),  # their reprs are others in each process, and ids must not be
        pytest.param(datetime.now(UTC), id="datetime.now(UTC)"),
        1j,
        len,
        {(1, 2): 3},
        {b"a": 1},
    ],
    ids=repr,
)
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(CodecError, match=f"payload of type {type(value).__name__} "):
        encode(value)


def nested(make: Callable[[Any], Any], levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = make(value)
    return value


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["list", "dict"])
def test_200_levels_always_go_and_far_too_many_never_do(make: Callable[[Any], Any]) -> None:
    assert decode(encode(nested(make, 200))) == nested(make, 200)
    with pytest.raises(CodecError, match="nested too deeply"):
        encode(nested(make, 200_000))


def test_a_circular_value_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(CodecError):
        encode(circle)


def test_ints_go_up_to_the_interpreters_digit_limit() -> None:
    assert decode(encode([LONGEST_INT, -LONGEST_INT])) == [LONGEST_INT, -LONGEST_INT]
    with pytest.raises(CodecError):
        encode({"n": LONGEST_INT * 10})


@pytest.mark.parametrize("character", ["x", "é", "\0", '"', "😀"])
def test_a_string_of_2_mib_round_trips(character: str) -> None:
    text = character * (2 * 1024 * 1024 // len(character.encode()))
    assert decode(encode(text)) == text


@pytest.mark.parametrize("body", ["", "{", "nope", "[1,", '"\\ud8', "[" * 100_000])
def test_a_stored_text_that_is_no_json_is_a_codec_error(body: str) -> None:
    with pytest.raises(CodecError, match="is no JSON"):
        decode(body)


def test_a_conversion_gets_the_decoded_value() -> None:
    assert convert("[1,2]", [1, 2], tuple) == (1, 2)


@pytest.mark.parametrize(
    "failure", [ValueError("no"), KeyError("x"), TypeError("odd"), AttributeError(), CodecError("c")]
)
def test_whatever_a_conversion_raises_is_a_codec_error_that_names_the_body(failure: Exception) -> None:
    def fail(value: object) -> None:
        raise failure

    with pytest.raises(CodecError, match=r"payload '\{\"a\":1\}' was not taken by") as caught:
        convert('{"a":1}', {"a": 1}, fail)
    assert caught.value.__cause__ is failure


def test_a_conversion_that_is_interrupted_is_not_caught() -> None:
    def interrupted(value: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert("1", 1, interrupted)
