"""What `Tx.execute` takes, whatever the engine: any statement but one that ends the transaction it runs in.

A statement travels alone, so its first words tell. Engines differ in what may stand before them; what would end a
transaction as either reads it is refused by both.
"""

import re

__all__ = ["checked_statement", "outlasts"]

_Reading = tuple[re.Pattern[str], re.Pattern[str]]  # what is skipped between comments, and where their depth changes

_AS_POSTGRES: _Reading = (re.compile(r"(?:[\s\ufeff;]|--[^\r\n]*)*"), re.compile(r"/\*|\*/"))
_AS_SQLITE: _Reading = (re.compile(r"(?:[\s\ufeff;]|--[^\n]*)*"), re.compile(r"\*/"))
_WORD = re.compile(r"\w*")
_ENDING = {"abort", "begin", "commit", "end", "release", "rollback", "savepoint"}
_ENDING_WITH_TRANSACTION = {"prepare", "start"}
_OUTLASTING = {"attach", "detach", "pragma"}
_TEMPORARY = {"temp", "temporary"}


def checked_statement(sql: str) -> str:
    """A statement that does not end the transaction; ``ValueError`` for one that would."""
    for reading in (_AS_POSTGRES, _AS_SQLITE):
        first, end = _word(sql, 0, reading)
        if first in _ENDING or (first in _ENDING_WITH_TRANSACTION and _word(sql, end, reading)[0] == "transaction"):
            raise ValueError("a transaction is ended by its own methods, not by a statement")
    return sql


def outlasts(sql: str) -> bool:
    """Whether a statement may change SQLite's connection for longer than its transaction."""
    first, end = _word(sql, 0, _AS_SQLITE)
    return first in _OUTLASTING or (first == "create" and _word(sql, end, _AS_SQLITE)[0] in _TEMPORARY)


def _word(sql: str, at: int, reading: _Reading) -> tuple[str, int]:
    """The first word from somewhere on, and where it ends; none in an endless comment."""
    blank, edge = reading
    depth = 0
    while True:
        if depth:
            found = edge.search(sql, at)
            if found is None:
                return "", len(sql)
            depth += 1 if found[0] == "/*" else -1
            at = found.end()
            continue
        at = blank.match(sql, at).end()  # type: ignore[union-attr]  # it matches anything
        if not sql.startswith("/*", at):
            word = _WORD.match(sql, at)
            assert word is not None
            return word[0].lower(), word.end()
        depth, at = 1, at + 2
