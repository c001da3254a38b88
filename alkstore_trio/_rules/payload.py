"""What a payload becomes: compact JSON text, made once at the call and never again.

The encoder and the scanner are built once and kept: building them is most of what ``json.dumps`` costs.
"""

import json
from collections.abc import Callable
from json import encoder as json_encoder
from typing import Any, TypeVar

from .._errors import CodecError, shown

__all__ = ["convert", "decode", "encode"]

T = TypeVar("T")


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON")


def _kept_encoder() -> Callable[[object, int], tuple[str, ...]]:
    """A function that gives the chunks of a value's text; a circular value ends in ``RecursionError``."""
    make: Any = getattr(json_encoder, "c_make_encoder", None)  # not in the type stubs; None without the C part
    if make is None:
        plain = json.JSONEncoder(
            ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"), default=_refuse
        )
        return lambda value, _indent: (plain.encode(value),)
    quoted: Any = json_encoder.encode_basestring
    kept: Callable[[object, int], tuple[str, ...]] = make(None, _refuse, quoted, None, ":", ",", False, False, False)
    return kept


_chunks = _kept_encoder()
_decoder: Any = json.JSONDecoder()  # `scan_once` is not in the type stubs
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once


def encode(payload: object) -> str:
    """The payload as compact JSON, non-ASCII unescaped, key order kept. ``CodecError`` if JSON cannot carry it."""
    try:
        body = "".join(_chunks(payload, 0))
        if not body.isascii():
            body.encode()  # a lone surrogate has no UTF-8
    except (TypeError, ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else f"cannot be JSON ({error})"
        raise CodecError(f"payload of type {type(payload).__name__} {reason}") from error
    return body


def decode(body: str) -> Any:
    """The value of a stored text. ``CodecError`` if it is no JSON."""
    try:
        return _scan(body, 0)[0]
    except (ValueError, StopIteration, RecursionError) as error:
        raise CodecError(f"stored body {shown(body)} is no JSON that this interpreter reads") from error


def convert(body: str, value: Any, to: Callable[[Any], T]) -> T:
    """``to(value)``; whatever it raises is a ``CodecError`` that names the body."""
    try:
        return to(value)
    except Exception as error:
        raise CodecError(f"payload {shown(body)} was not taken by {shown(to)}: {shown(error)}") from error
