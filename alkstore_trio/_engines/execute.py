"""What `Tx.execute` takes, whatever the engine: any statement but one that ends the transaction it runs in."""

import re

__all__ = ["checked_statement"]

_NOTHING = re.compile(r"(?:\s|\ufeff|;|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*", re.DOTALL)
_ENDING = re.compile(
    r"(?:abort|begin|commit|end|prepare\s+transaction|release|rollback|savepoint|start\s+transaction)\b", re.IGNORECASE
)


def checked_statement(sql: str) -> str:
    """A statement that does not end the transaction; ``ValueError`` for one that would."""
    if _ENDING.match(sql, _NOTHING.match(sql).end()):  # type: ignore[union-attr]  # it matches anything
        raise ValueError("a transaction is ended by its own methods, not by a statement")
    return sql
