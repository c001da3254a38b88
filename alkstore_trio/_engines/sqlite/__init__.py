"""The SQLite engine: one file, many processes, nothing lost that was returned.

Every write of a store goes through one thread, which commits those that wait together as one transaction; reads go to
threads with connections of their own. The event loop never waits for the database.
"""

from .engine import SqliteEngine as SqliteEngine
from .file import File as File

__all__ = ["File", "SqliteEngine"]
