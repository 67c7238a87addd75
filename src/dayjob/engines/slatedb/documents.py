"""The stored documents, read from the database."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from dayjob.engines.base import Document
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Source

_log = logging.getLogger("dayjob.engines.slatedb")


async def stored_documents(source: Source, prefix: bytes) -> AsyncIterator[tuple[str, Document]]:
    """Yield kinds and documents under the prefix, in key order, without those that can't be decoded."""
    async for rows in source.scan(prefix):
        for stored, value in rows:
            kind, name = keys.document_parts(stored)
            try:
                found = values.stored_document(value)
            except values.Corrupt as error:
                _log.error("the document %r of kind %r is ignored: %s", name, kind, error)
                continue
            yield kind, Document(name, found.value, found.written_us)
