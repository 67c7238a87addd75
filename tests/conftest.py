"""For all tests: the schemas that a test made on the shared server are removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.servers import postgres

settings.register_profile("fuzz", max_examples=5000, deadline=None)
"""For ``--hypothesis-profile=fuzz``: a long run of the tests in ``tests/fuzz``."""


@pytest.fixture(autouse=True)
def no_schema_is_left() -> Iterator[None]:
    yield
    postgres.drop_schemas()
