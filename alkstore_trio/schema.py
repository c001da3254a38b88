"""``python -m alkstore_trio.schema sqlite`` prints the schema, for people who run their own migrations."""

import argparse
from collections.abc import Sequence

from ._engines.schema import PREFIX, VERSION, checked_prefix, prefixed, sqlite_steps

__all__ = ["main", "script"]


def script(engine: str, prefix: str = PREFIX) -> str:
    """The statements that make an engine's tables in an empty database: ``engine`` is ``"sqlite"``."""
    checked_prefix(prefix)
    if engine != "sqlite":
        raise ValueError(f"engine must be 'sqlite', not {engine!r}")
    steps = [*sqlite_steps(0), f"insert into $schema(version)\nvalues ({VERSION})"]
    return prefixed("".join(f"{step};\n\n" for step in steps), prefix)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print `script` as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m alkstore_trio.schema", description="print a store's schema")
    parser.add_argument("engine", choices=["sqlite"])
    parser.add_argument("--table-prefix", default=PREFIX)
    options = parser.parse_args(arguments)
    print(script(options.engine, options.table_prefix), end="")


if __name__ == "__main__":
    main()
