"""The Postgres engine: a server, any number of hosts, nothing lost."""

from .engine import PostgresEngine
from .failures import parsed, redacted
from .server import Server

__all__ = ["PostgresEngine", "Server", "parsed", "redacted"]
