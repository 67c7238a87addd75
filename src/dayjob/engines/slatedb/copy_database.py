"""Copying a database. The copy can be written by a clock that is behind the last write of the original."""

from __future__ import annotations

from msgspec.structs import replace

from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Database, Source
from dayjob.engines.slatedb.opening import check_layout, read_owner, refuse_live_owner
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.errors import ConfigError

_CHUNK = 64
"""Rows of one write. A row has up to one payload."""


async def copy_database(source: SlateSettings, target: SlateSettings) -> int:
    """Copy all rows to a new database, and return the number of jobs. The source is not changed.

    The version of the layout is written last. A copy that was cut off has none, so it can't be opened.
    """
    source.check()
    target.check()
    existing = await target.open_reader()
    if existing is not None:
        await existing.shutdown()
        raise ConfigError(f"{target.url}: there is a database already: name a new folder or prefix")
    reader = await source.open_reader()
    if reader is None:
        raise ConfigError(f"{source.url}: there is no database: correct the URL")
    rows = Source(source, reader)
    try:
        if await check_layout(rows) is None:
            raise ConfigError(f"{source.url}: the database is empty: there is nothing to copy")
        owner = await read_owner(rows)
        refuse_live_owner(source, owner)
        copy = Database(target, await target.open_writer())
        try:
            jobs = 0
            last: dict[bytes, bytes | None] = {}
            async for chunk in rows.scan(b"", chunk=_CHUNK, once=True):
                changes: dict[bytes, bytes | None] = dict(chunk)
                last |= {key: changes.pop(key) for key in (keys.LAYOUT_KEY, keys.OWNER) if key in changes}
                jobs += sum(key.startswith((keys.JOB, keys.FINISHED)) for key in changes)
                await copy.write(changes)
            if owner is not None:
                # The next session has a new number, so that claims of this one are orphans.
                last[keys.OWNER] = values.encode(replace(owner, closed=True))
            handle = await copy.write(last)
            await copy.flush()
            await copy.wait_durable(handle)
        finally:
            await copy.close()
    finally:
        await rows.close()
    return jobs
