import pytest

pytest.register_assert_rewrite("alkstore_trio.testing.conformance")
