"""How the library's own statements and their answers travel: past psycopg's adapters, which are the application's.

A parameter goes by the type that the statement's text casts it to, so that each text has one plan.
"""

import re
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from psycopg import adapt, postgres, pq
from psycopg.types import array

__all__ = ["ADAPTERS", "Plan"]

_TEXT, _BINARY = pq.Format.TEXT, pq.Format.BINARY

_LENGTH = struct.Struct("!i").pack
_HEAD = struct.Struct("!iIIii").pack  # of an array: dimensions, has nulls, element's type, length, lower bound
_NULL = b"\xff\xff\xff\xff"


_as_text: Callable[[Any], bytes] = str.encode


def _as_json(value: Any) -> bytes:
    return b"\x01" + str.encode(value)


_FORMATS = {16: "?", 20: "q", 21: "h", 23: "i", 700: "f", 701: "d"}  # of what has one size
_ENCODERS: dict[int, Callable[[Any], bytes]] = {
    17: bytes,
    25: _as_text,
    114: _as_text,
    1043: _as_text,
    3802: _as_json,
    **{oid: struct.Struct(f"!{code}").pack for oid, code in _FORMATS.items()},
}
_ARRAYS = {1000: 16, 1001: 17, 1005: 21, 1007: 23, 1009: 25, 1015: 1043, 1016: 20, 1021: 700, 1022: 701, 3807: 3802}


def _item(element: int) -> Callable[[Any], bytes]:
    """How one value of an array travels: behind its length."""
    if code := _FORMATS.get(element):
        sized = struct.Struct(f"!i{code}")
        return partial(sized.pack, sized.size - struct.calcsize("!i"))
    encode = _ENCODERS[element]

    def behind_its_length(value: Any) -> bytes:
        encoded = encode(value)
        return _LENGTH(len(encoded)) + encoded

    return behind_its_length


def _array(element: int) -> Callable[[Sequence[Any]], bytes]:
    item = _item(element)

    def encode_all(values: Sequence[Any]) -> bytes:
        items = [_NULL if value is None else item(value) for value in values]
        return b"".join([_HEAD(1, 1, element, len(items), 1), *items])

    return encode_all


_ENCODERS |= {array: _array(element) for array, element in _ARRAYS.items()}


def _pristine() -> adapt.AdaptersMap:
    """Psycopg's adapters as they come, whatever the application has registered since."""
    adapters = adapt.AdaptersMap()
    postgres.register_default_types(adapters.types)
    postgres.register_default_adapters(adapters)
    array.register_all_arrays(adapters)
    return adapters


ADAPTERS = _pristine()


_CAST = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")


class Plan:
    """A statement of ours, which casts each parameter: prepared under a name, or under none and sent each time."""

    __slots__ = ("_encoders", "_fresh", "_transformer", "formats", "name", "types")

    def __init__(self, sql: str, name: bytes = b"") -> None:
        casts = {int(number): ADAPTERS.types.get_oid(of) for number, of in _CAST.findall(sql)}
        self.name = name
        self.types = [casts[number] for number in sorted(casts)]
        self._encoders = [_ENCODERS.get(oid, _as_text) for oid in self.types]
        self.formats = [_BINARY if oid in _ENCODERS else _TEXT for oid in self.types]
        self._transformer = adapt.Transformer(ADAPTERS)
        self._fresh = True  # whether the columns' types are still to be seen

    def encoded(self, params: Sequence[Any]) -> list[bytes | None]:
        """Parameters as they travel; ``ValueError`` or ``TypeError`` for one that is not of its type."""
        try:
            return [
                None if value is None else encode(value) for encode, value in zip(self._encoders, params, strict=True)
            ]
        except struct.error as error:
            raise ValueError(f"a parameter does not have its statement's type: {error}") from None

    def rows(self, result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
        """The rows of an answer."""
        transformer = self._transformer
        transformer.set_pgresult(result, set_loaders=self._fresh)
        self._fresh = False
        rows = transformer.load_rows(0, result.ntuples, tuple)
        transformer.set_pgresult(None, set_loaders=False)  # so that the answer is not kept
        return rows
