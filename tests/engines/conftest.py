from pathlib import Path

import pytest

from alkstore_trio.testing.conformance.kit import anyio_backend

__all__ = ["anyio_backend", "path"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a test's file is, or is to be."""
    return str(tmp_path / "store.db")
