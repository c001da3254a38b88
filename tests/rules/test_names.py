"""Names: what is taken, what is refused, what is derived."""

from collections.abc import Callable

import pytest

from alkstore_trio import InvalidName, ReservedName
from alkstore_trio._rules import names

BOTH = pytest.mark.parametrize("check", [names.local, names.shared])

Check = Callable[[str], str]


@BOTH
@pytest.mark.parametrize(
    "name",
    ["a", " a b ", "  x", "größe", "名", "it's", 'a"b', "100%", "a:b/c", "a\nb", "x" * 512, "é" * 256, "😀" * 128],
)
def test_a_name_is_taken_as_it_is(check: Check, name: str) -> None:
    assert check(name) == name


@BOTH
@pytest.mark.parametrize(
    "name",
    ["", " ", "\t\n\r", "\u00a0", "\u2003 \u3000", "\x1c\x85", "a\0", "\0", "\ud800", "a\udfffb", "x" * 513, "é" * 257],
)
def test_a_name_that_no_engine_takes_is_refused_and_told(check: Check, name: str) -> None:
    with pytest.raises(InvalidName) as refusal:
        check(name)
    assert refusal.value.name == name


@BOTH
@pytest.mark.parametrize("name", [None, 1, b"a", True, ["a"], {}])
def test_a_name_that_is_no_string_is_a_type_error(check: Callable[[object], str], name: object) -> None:
    with pytest.raises(TypeError, match=f"a name must be a str, not {type(name).__name__}"):
        check(name)


class _Folded(str):
    """Equal to whatever differs in case alone."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self.lower() == str(other).lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class _Unhashable(str):
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # as where only __eq__ is defined


@BOTH
@pytest.mark.parametrize("kind", [_Folded, _Unhashable])
def test_a_name_of_a_subclass_of_str_is_its_own_whatever_it_says_it_equals(check: Check, kind: type[str]) -> None:
    for name in ("Mail", "mail"):
        taken = check(kind(name))
        assert (type(taken), taken) == (str, name)


@pytest.mark.parametrize("name", ["__alkstore_", "__alkstore_x", names.LEADER, names.RECONNECTED, names.SCHEDULE_WAKE])
def test_the_reserved_prefix_is_refused_where_names_are_shared_only(name: str) -> None:
    assert names.local(name) == name
    with pytest.raises(ReservedName) as refusal:
        names.shared(name)
    assert refusal.value.name == name


@pytest.mark.parametrize("name", ["__alkstore", "_alkstore_", " __alkstore_", "__ALKSTORE_x", "x__alkstore_"])
def test_the_reserved_prefix_is_taken_word_for_word(name: str) -> None:
    assert names.shared(name) == name


def test_an_unusable_name_is_invalid_before_it_is_reserved() -> None:
    with pytest.raises(InvalidName):
        names.shared("__alkstore_" + "x" * 512)


@BOTH
def test_a_subclass_of_str_becomes_a_plain_one(check: Check) -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "loud"

    name = check(Loud("quiet"))
    assert type(name) is str
    assert name == "quiet"


def test_derived_names_are_those_of_every_engine() -> None:
    assert names.LEADER == "__alkstore_scheduler"
    assert names.SCHEDULE_WAKE == "__alkstore_schedule_wake"
    assert names.RECONNECTED == "__alkstore_listener_reconnected__"
    assert names.backing_queue("o") == "__alkstore_outbox:o"
    assert names.stream_wake("s") == "__alkstore_stream_wake:s"
    assert names.queue_wake("q") == "__alkstore_queue_wake:q"


@pytest.mark.parametrize("derive", [names.backing_queue, names.stream_wake, names.queue_wake])
def test_no_caller_can_name_what_is_derived(derive: Callable[[str], str]) -> None:
    with pytest.raises(ReservedName):
        names.shared(derive("x"))
