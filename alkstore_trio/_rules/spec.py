"""The grammar of a schedule's spec, version 1: ``@every <n><unit>``."""

import re

from .._errors import InvalidSpec

__all__ = ["interval"]

_EVERY = re.compile(r"[ \t]*@every[ \t]+([0-9]+)([smhd])[ \t]*")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}  # seconds
_LONGEST = 3_650 * 86_400  # seconds
_DIGITS = 400  # more than any number in range has, leading zeros aside, and within what int() takes


def interval(spec: str) -> float:
    """The seconds between two boundaries of a spec."""
    if not isinstance(spec, str):
        raise TypeError(f"a spec must be a str, not {type(spec).__name__}")
    match = _EVERY.fullmatch(spec)
    if match is None:
        raise InvalidSpec(spec)
    digits = match[1].lstrip("0")
    seconds = int(digits or "0") * _UNITS[match[2]] if len(digits) < _DIGITS else _LONGEST + 1
    if not 0 < seconds <= _LONGEST:
        raise InvalidSpec(spec)
    return float(seconds)
