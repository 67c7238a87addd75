"""The settings of a database: they open a writer or a reader, and translate SlateDB's errors."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from msgspec import Struct
from slatedb import uniffi

from dayjob.engines.base import Reply, Transient
from dayjob.errors import ConfigError, DayjobError, EngineFenced, EngineUnavailable
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM

_environment = Lock()
_FLUSH_FACTOR = 20
"""The store thread requests flushes itself. SlateDB's own timer is slower by this factor."""
_BLOCK_CACHE_BYTES, _INDEX_CACHE_BYTES = 32 << 20, 32 << 20
"""The caches of tables: their blocks, and their indexes and filters. By default they grow to 640 MiB."""
_CACHE_SHARDS = 4
_NEVER_MS = 86_400_000
_READER_RETRIES = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
_NO_DATABASE = "failed to find latest transactional object"
_REQUESTS, _FAILED_REQUESTS = "slatedb.object_store.request_count", "slatedb.object_store.error_count"
_BACKGROUND = ("gc", "compactor")
_CLOCK_BEHIND = "invalid clock tick"


class SlateSettings(Struct, frozen=True):
    """The location of a database, and its options."""

    url: str
    store: str
    """The URL of the store: ``file:///`` or a bucket."""

    path: str
    """The path of the database in the store."""

    flush_ms: int
    timeout: float
    """Seconds after which a store that does not reply is unavailable."""

    beat: float
    """Seconds between the owner's heartbeats."""

    take_over: bool = False
    read_only: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    """Options of the URL that replace environment variables of the store."""

    @property
    def local(self) -> bool:
        return self.store == "file:///"

    @property
    def store_id(self) -> str:
        """Return a name of the store. Options of the URL, such as the endpoint, are part of it."""
        return " ".join([self.store, *(f"{name}={value}" for name, value in self.variables)])

    @property
    def identity(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """Return a key that all URLs of the same database share."""
        path = str(Path(self.path).resolve()) if self.local else self.path.strip("/")
        return self.store, path, self.variables

    def check(self) -> None:
        """Raise if the path can't be a database, before SlateDB creates folders."""
        if self.local:
            path = Path(self.path)
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{self.url}: {self.path!r} is a file: name a folder for the database")
            if not path.parent.is_dir():
                raise ConfigError(
                    f"{self.url}: the folder {str(path.parent)!r} does not exist: make it, or correct the URL"
                )
            if path.is_dir() and not (path / "manifest").is_dir() and any(path.iterdir()):
                raise ConfigError(
                    f"{self.url}: the folder {self.path!r} holds other files: name a new or empty folder"
                )

    def resolve(self) -> uniffi.ObjectStore:
        with _with_variables(dict(self.variables)):
            try:
                return uniffi.ObjectStore.resolve(self.store)
            except uniffi.Error as error:
                raise ConfigError(
                    f"{self.url}: the store can't be used ({_text(error)}): check the URL, and the region, "
                    "endpoint and credentials in the environment"
                ) from error

    async def open_writer(self) -> uniffi.Db:
        settings = uniffi.Settings.default()
        settings.set("flush_interval", json.dumps(f"{_FLUSH_FACTOR * self.flush_ms}ms"))
        settings.set("manifest_poll_interval", json.dumps("1s" if self.local else "5s"))
        settings.set("l0_sst_size_bytes", str(16 << 20))
        settings.set("max_unflushed_bytes", str(128 << 20))
        builder, requests = uniffi.DbBuilder(self.path, self.resolve()), uniffi.DefaultMetricsRecorder()
        builder.with_settings(settings)
        builder.with_db_cache(_new_cache(), 0)
        builder.with_metrics_recorder(requests)
        return await self.opening(builder.build(), requests)

    async def open_reader(self, *, replay: bool = True) -> uniffi.DbReader | None:
        """Return a reader of the durable state, or None if there is no database. It writes nothing.

        It may still catch up with the writer just after it was opened. Without ``replay``, it reads no log.
        """
        requests = uniffi.DefaultMetricsRecorder()
        return await self.opening(self._build_reader(requests, replay), requests)

    async def _build_reader(
        self, requests: uniffi.DefaultMetricsRecorder, replay: bool
    ) -> uniffi.DbReader | None:
        """Build a reader. SlateDB would repeat refused requests for ever, so this loop repeats instead."""
        backoff, deadline = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), float("inf")
        while True:
            builder = uniffi.DbReaderBuilder(self.path, self.resolve())
            builder.with_reader_mode(uniffi.ReaderMode.FOLLOW_LATEST())
            builder.with_db_cache(_new_cache(), 0)
            builder.with_metrics_recorder(requests)
            builder.with_options(
                uniffi.ReaderOptions(
                    manifest_poll_interval_ms=_NEVER_MS,
                    checkpoint_lifetime_ms=600_000,
                    max_memtable_bytes=64 << 20,
                    skip_wal_replay=not replay,
                    object_store_max_retries=_READER_RETRIES,
                )
            )
            try:
                return await builder.build()
            except uniffi.Error as error:
                if _NO_DATABASE in str(error):
                    return None
                translated = self.translated(error, opening=True)
                if not isinstance(translated, EngineUnavailable) or SYSTEM.elapsed() > deadline:
                    raise translated from error
                deadline = min(deadline, SYSTEM.elapsed() + self.timeout)
            await backoff.wait(SYSTEM)

    async def last_log_rows(self) -> list[uniffi.RowEntry]:
        """Return the rows of the last log object that has any, or none if all of the log is in tables."""
        reader = await self.open_reader(replay=False)  # It raises a clear error if the store refuses.
        if reader is None:
            return []
        await reader.shutdown()
        start = await self._log_start()
        while start is not None:
            try:
                return await self._last_rows_after(start)
            except ConfigError:  # A live owner may have removed the objects that it has written to tables.
                before, start = start, await self._log_start()
                if start == before:
                    raise
        return []

    async def log_objects(self) -> int:
        """Return the number of log objects that an opening process replays."""
        start = await self._log_start()
        return 0 if start is None else await self.opening(self._log().last_wal_file_id(start)) - start

    async def _log_start(self) -> int | None:
        """Return the number of the last log object whose rows are all in tables."""
        manifest = await self.opening(self._admin().read_manifest(None))
        return None if manifest is None else manifest.replay_after_wal_id

    async def _last_rows_after(self, start: int) -> list[uniffi.RowEntry]:
        log = self._log()
        for number in range(await self.opening(log.last_wal_file_id(start)), start, -1):
            found = await self.opening(_rows(log, number))
            if found:  # A writer that opens the database adds an empty one.
                return found
        return []

    def _log(self) -> uniffi.SlateDbWalReader:
        options = uniffi.SlateDbWalReaderOptions(max_fetch_tasks=1)
        return uniffi.SlateDbWalReader.with_options(self.path, self.resolve(), options)

    async def read_epoch(self) -> int:
        """Return the number of times that a writer has opened the database. SlateDB stores it."""
        manifest = await self.opening(self._admin().read_manifest(None))
        return 0 if manifest is None else manifest.writer_epoch

    def _admin(self) -> uniffi.Admin:
        return uniffi.AdminBuilder(self.path, self.resolve()).build()

    async def opening(
        self, work: Awaitable[Reply], requests: uniffi.DefaultMetricsRecorder | None = None
    ) -> Reply:
        """Return the result. Raise a clear error for a store that refuses or does not reply.

        ``requests`` counts the requests of the work. It may take any time while some of them succeed.
        """
        task, succeeded = asyncio.ensure_future(work), 0
        try:
            while not (await asyncio.wait({task}, timeout=self.timeout))[0]:
                before, succeeded = succeeded, 0 if requests is None else _succeeded(requests)
                if requests is None or succeeded == before:
                    raise EngineUnavailable(
                        f"{self.url}: the store has not replied within {self.timeout:g} s: check that the "
                        "bucket exists, that its endpoint can be reached, and that the credentials may use it"
                    )
            return task.result()
        except uniffi.Error as error:
            raise self.translated(error, opening=True) from error
        finally:
            task.cancel()

    def translated(self, error: uniffi.Error, *, opening: bool = False) -> DayjobError:
        text = _text(error)
        if isinstance(error, uniffi.Error.Closed) and error.reason is uniffi.CloseReason.FENCED:
            return self.fenced() if opening else self.lost()
        if _CLOCK_BEHIND in text:
            return self.clock_behind(text)
        if opening and isinstance(error, (uniffi.Error.Data, uniffi.Error.Invalid)):
            return ConfigError(
                f"{self.url}: it can't be opened ({text}): check the URL; if it is right, this is no "
                "database, or a damaged one"
            )
        refused = next((sign for sign in _REFUSALS if sign.lower() in text.lower()), None)
        if refused is not None:
            kind = ConfigError if opening else EngineUnavailable
            return kind(f"{self.url}: the store refuses it ({text}): {_REFUSALS[refused]}")
        return EngineUnavailable(f"{self.url}: the store failed ({text}): the operation may be repeated")

    def timed_out(self, cause: str | None, *, commit_unknown: bool = False) -> Transient:
        """Return the error of a call that the store has not replied to in time."""
        reason = cause or f"{self.url}: the store has not replied: the operation may be repeated"
        return Transient(f"{reason} (waited {self.timeout:g} s)", commit_unknown=commit_unknown)

    def lost(self) -> Transient:
        """Return the error of a write that the store refused because the object exists.

        Another process may have taken over. Opening the database again shows whether one has.
        """
        return Transient(
            f"{self.url}: the store refused a conditional write: the database is opened again",
            commit_unknown=True,
        )

    def clock_behind(self, reason: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"{self.url}: {reason}, and SlateDB refuses earlier writes: correct the clock; if it was wrong "
            "at the last write, copy the database with dayjob copy, and use the copy"
        )

    def fenced(self) -> EngineFenced:
        return EngineFenced(
            f"{self.url}: another process has taken the database over, so this one can't use it any more: "
            "stop it, or open it again with ?takeover=1 once the other has ended"
        )


_REFUSALS = {
    "/latest/api/token": "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "NoSuchBucket": "make the bucket, or correct its name",
    "ContainerNotFound": "make the container, or correct its name",
    "AccessDenied": "allow the credentials to list, read, write and delete in it",
    "ExpiredToken": "the credentials have expired: renew them",
    "InvalidAccessKeyId": "check the credentials in the environment",
    "SignatureDoesNotMatch": "check the credentials in the environment",
    "AuthenticationFailed": "check the credentials in the environment",
    "403 Forbidden": "allow the credentials to list, read, write and delete in it",
    "401 Unauthorized": "check the credentials in the environment",
    "404 Not Found": "make the bucket, or correct its name",
}


def _text(error: uniffi.Error) -> str:
    return str(getattr(error, "message", error))


def _new_cache() -> uniffi.DbCache:
    blocks, indexes = (
        uniffi.DbCache.new_foyer_cache(uniffi.FoyerCacheOptions(max_capacity=size, shards=_CACHE_SHARDS))
        for size in (_BLOCK_CACHE_BYTES, _INDEX_CACHE_BYTES)
    )
    return uniffi.DbCache.new_split_cache(blocks, indexes)


async def _rows(log: uniffi.SlateDbWalReader, number: int) -> list[uniffi.RowEntry]:
    """Return the rows of a log object that exists."""
    found = await (await log.iterator(number)).next()
    return [] if found is None else found.rows


def _succeeded(requests: uniffi.DefaultMetricsRecorder) -> int:
    """Return the number of requests that the store has carried out, without those of background tasks."""
    asked, failed = (
        sum(
            int(metric.value[0])
            for metric in requests.metrics_by_name(name)
            if not any(label.value in _BACKGROUND for label in metric.labels)
        )
        for name in (_REQUESTS, _FAILED_REQUESTS)
    )
    return asked - failed


@contextmanager
def _with_variables(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a moment. The store reads its settings from there only."""
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
