"""What every test leaves behind is removed: here, the schemas that it made on the shared server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import postgres


@pytest.fixture(autouse=True)
def no_schema_is_left() -> Iterator[None]:
    yield
    postgres.drop_schemas()
