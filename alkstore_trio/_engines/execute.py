"""What `Tx.execute` takes, whatever the engine: any statement but one that ends the transaction it runs in.

A statement travels alone, so its first words tell. Engines differ in what may stand before them; what would end a
transaction as either reads it is refused by both.
"""

import re

__all__ = ["checked_statement", "outlasts"]

# What is skipped between comments, and what a comment's depth changes at: as Postgres reads it, then as SQLite does.
_READINGS = (
    (re.compile(r"(?:[\s\ufeff;]|--[^\r\n]*)*"), re.compile(r"/\*|\*/")),
    (re.compile(r"(?:[\s\ufeff;]|--[^\n]*)*"), re.compile(r"\*/")),
)
_WORD = re.compile(r"\w*")
_ENDING = {"abort", "begin", "commit", "end", "release", "rollback", "savepoint"}
_ENDING_WITH_TRANSACTION = {"prepare", "start"}
_OUTLASTING = {"attach", "detach", "pragma"}
_TEMPORARY = {"temp", "temporary"}


def checked_statement(sql: str) -> str:
    """A statement that does not end the transaction; ``ValueError`` for one that would."""
    for blank, edge in _READINGS:
        first, end = _word(sql, 0, blank, edge)
        if first in _ENDING or (first in _ENDING_WITH_TRANSACTION and _word(sql, end, blank, edge)[0] == "transaction"):
            raise ValueError("a transaction is ended by its own methods, not by a statement")
    return sql


def outlasts(sql: str) -> bool:
    """Whether a statement may change SQLite's connection for longer than its transaction."""
    first, end = _word(sql, 0, *_READINGS[1])
    return first in _OUTLASTING or (first == "create" and _word(sql, end, *_READINGS[1])[0] in _TEMPORARY)


def _word(sql: str, at: int, blank: re.Pattern[str], edge: re.Pattern[str]) -> tuple[str, int]:
    """The first word from somewhere on, and where it ends; none in an endless comment."""
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
