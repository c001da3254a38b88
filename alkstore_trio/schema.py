"""``python -m alkstore_trio.schema ENGINE`` prints the schema, for people who run their own migrations."""

import argparse
from collections.abc import Sequence

from ._engines.schema import (
    PREFIX,
    SCHEMA,
    VERSION,
    checked_prefix,
    placed,
    postgres_steps,
    prefixed,
    quoted,
    sqlite_steps,
)

__all__ = ["main", "script"]


def script(engine: str, place: str | None = None) -> str:
    """The statements that make an engine's tables in an empty database.

    ``engine`` is ``"sqlite"``, where ``place`` is what the tables' names begin with, or ``"postgres"``, where it is the
    schema that they are in.
    """
    if engine == "sqlite":
        prefix = checked_prefix(PREFIX if place is None else place)
        steps = [*sqlite_steps(0), f"insert into $schema(version)\nvalues ({VERSION})"]
        return prefixed("".join(f"{step};\n\n" for step in steps), prefix)
    if engine == "postgres":
        schema = quoted(SCHEMA if place is None else place)
        steps = [f"create schema {schema}", *(placed(step, schema) for step in postgres_steps(0))]
        return "".join(f"{step};\n\n" for step in steps)
    raise ValueError(f"engine must be 'sqlite' or 'postgres', not {engine!r}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print `script` as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m alkstore_trio.schema", description="print a store's schema")
    engines = parser.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    engines.add_parser("sqlite").add_argument("--table-prefix", dest="place", default=PREFIX)
    engines.add_parser("postgres").add_argument("--schema", dest="place", default=SCHEMA)
    options = parser.parse_args(arguments)
    print(script(options.engine, options.place), end="")


if __name__ == "__main__":
    main()
