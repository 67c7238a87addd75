"""Trials of a bucket: whether it honours conditional writes, and why it does not reply.

dayjob has no access to the bucket except through SlateDB, so a trial is a small database of its own, below
the path of the real one. It is deleted afterwards.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from slatedb import uniffi

from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.errors import ConfigError
from dayjob.runtime.ids import new_key

_LOG = uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL)
_SEARCH_TIMEOUT = 5.0


async def check_conditional_writes(settings: SlateSettings) -> None:
    """Raise if the store ignores the condition of a conditional write.

    The writers of a database exclude each other by objects that only one of them can create. A store that
    ignores ``If-None-Match`` lets both write, and each destroys jobs of the other.
    """
    requests = uniffi.DefaultMetricsRecorder()
    if not await settings.opening(_is_fenced(settings, requests), requests):
        raise ConfigError(
            f"{settings.url}: the store ignores the condition of a write (If-None-Match: *), so that two "
            "processes could destroy each other's jobs: use a store with conditional writes, or a newer "
            "version of it"
        )


async def find_refusal(settings: SlateSettings) -> str | None:
    """Return the reason why a store does not carry out requests, or None if it does or can't be reached."""
    if not settings.local:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(_SEARCH_TIMEOUT),
                _trial(settings, uniffi.DefaultMetricsRecorder()) as open_writer,
            ):
                try:
                    await open_writer(0)
                except uniffi.Error as error:
                    return str(settings.translated(error))
    return None


async def _is_fenced(settings: SlateSettings, requests: uniffi.DefaultMetricsRecorder) -> bool:
    """Return whether the second writer of a database fences the first."""
    async with _trial(settings, requests) as open_writer:
        first = await open_writer()
        await open_writer()
        try:
            written = await first.put(b"k", b"v")
            await first.flush_with_options(_LOG)
            await written.await_durable()
        except uniffi.Error.Closed:
            return True
    return False


@asynccontextmanager
async def _trial(
    settings: SlateSettings, requests: uniffi.DefaultMetricsRecorder
) -> AsyncIterator[Callable[..., Awaitable[uniffi.Db]]]:
    """Yield a function that opens a writer of a new database. All of it is removed at the end."""
    path, store = f"{settings.path}/trial-{new_key().hex()}", settings.resolve()

    async with AsyncExitStack() as stack:

        async def open_writer(retries: int | None = None) -> uniffi.Db:
            options = uniffi.Settings.default()
            options.set("compactor_options", "null")
            options.set("garbage_collector_options", "null")
            options.set("manifest_poll_interval", json.dumps("1h"))
            options.set("object_store_max_retries", json.dumps(retries))
            builder = uniffi.DbBuilder(path, store)
            builder.with_settings(options)
            builder.with_metrics_recorder(requests)
            database = await builder.build()
            stack.push_async_callback(delete)
            stack.push_async_callback(_shut, database)
            return database

        async def delete() -> None:
            with suppress(uniffi.Error):
                await uniffi.AdminBuilder(path, store).build().delete_db(True)

        yield open_writer


async def _shut(database: uniffi.Db) -> None:
    with suppress(uniffi.Error):
        await database.shutdown()
