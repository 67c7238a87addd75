"""Where a database is: from a URL to an open writer or reader, and from SlateDB's errors to ours."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

from msgspec import Struct
from slatedb import uniffi

from dayjob.errors import ConfigError, DayjobError, EngineFenced, EngineUnavailable
from dayjob.runtime.clock import SYSTEM

Answer = TypeVar("Answer")

_environment = Lock()
_SELDOM = 20
"""The core asks for flushes itself; SlateDB's own, by its clock, come so many times less often."""
_NEVER_MS = 86_400_000
_BRIEFLY = 2
_PAUSE = 0.2
_NO_DATABASE = "failed to find latest transactional object"


class Place(Struct, frozen=True):
    """A database, and how to treat it."""

    url: str
    store: str
    """The URL of the store: ``file:///`` or a bucket."""

    path: str
    """Where in the store the database is."""

    flush_ms: int
    patience: float
    """Seconds after which a store that does not answer is said to be unavailable."""

    beat: float
    """Seconds between the owner's signs of life."""

    take_over: bool = False
    read_only: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    """What the URL says in place of the store's environment variables."""

    @property
    def local(self) -> bool:
        return self.store == "file:///"

    @property
    def identity(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """What two URLs of the same database have in common."""
        path = str(Path(self.path).resolve()) if self.local else self.path.strip("/")
        return self.store, path, self.variables

    def check(self) -> None:
        """Refuse a path that can't be a database, before SlateDB makes folders."""
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
        settings.set("flush_interval", json.dumps(f"{_SELDOM * self.flush_ms}ms"))
        settings.set("manifest_poll_interval", json.dumps("1s" if self.local else "5s"))
        settings.set("l0_sst_size_bytes", str(16 << 20))
        settings.set("max_unflushed_bytes", str(128 << 20))
        builder = uniffi.DbBuilder(self.path, self.resolve())
        builder.with_settings(settings)
        return await self.opening(builder.build())

    async def open_reader(self) -> uniffi.DbReader | None:
        """A reader of what is durable now, which changes nothing in the store; None if there is no database.

        It may still catch up with the writer just after it was opened.
        """
        return await self.opening(self._read_patiently())

    async def _read_patiently(self) -> uniffi.DbReader | None:
        """SlateDB tries for ever what a store refuses; so it is to try briefly, and this tries again."""
        while True:
            builder = uniffi.DbReaderBuilder(self.path, self.resolve())
            builder.with_reader_mode(uniffi.ReaderMode.FOLLOW_LATEST())
            builder.with_options(
                uniffi.ReaderOptions(
                    manifest_poll_interval_ms=_NEVER_MS,
                    checkpoint_lifetime_ms=600_000,
                    max_memtable_bytes=64 << 20,
                    skip_wal_replay=False,
                    object_store_max_retries=_BRIEFLY,
                )
            )
            try:
                return await builder.build()
            except uniffi.Error as error:
                if _NO_DATABASE in str(error):
                    return None
                told = self.translated(error, opening=True)
                if not isinstance(told, EngineUnavailable):
                    raise told from error
            await SYSTEM.wait(asyncio.Event(), _PAUSE)

    async def opening(self, work: Awaitable[Answer]) -> Answer:
        """What it comes to; a store that refuses or never answers is told as such."""
        try:
            async with asyncio.timeout(self.patience):
                return await work
        except TimeoutError:
            raise EngineUnavailable(
                f"{self.url}: the store has not answered within {self.patience:g} s: check that the bucket "
                "exists, that its endpoint can be reached, and that the credentials may use it"
            ) from None
        except uniffi.Error as error:
            raise self.translated(error, opening=True) from error

    def translated(self, error: uniffi.Error, *, opening: bool = False) -> DayjobError:
        text = _text(error)
        if isinstance(error, uniffi.Error.Closed) and error.reason is uniffi.CloseReason.FENCED:
            return self.fenced()
        if opening and isinstance(error, (uniffi.Error.Data, uniffi.Error.Invalid)):
            return ConfigError(
                f"{self.url}: it can't be opened ({text}): check the URL; if it is right, this is no "
                "database, or a damaged one"
            )
        refused = next((sign for sign in _REFUSALS if sign.lower() in text.lower()), None)
        if opening and refused is not None:
            return ConfigError(f"{self.url}: the store refuses it ({text}): {_REFUSALS[refused]}")
        return EngineUnavailable(f"{self.url}: the store failed ({text}): the operation may be repeated")

    def fenced(self) -> EngineFenced:
        return EngineFenced(
            f"{self.url}: another process has taken the database over, so this one can't use it any more: "
            "stop it, or open it again with ?takeover=1 once the other has ended"
        )


_REFUSALS = {
    "/latest/api/token": "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "NoSuchBucket": "make the bucket, or correct its name",
    "AccessDenied": "allow the credentials to list, read, write and delete in it",
    "InvalidAccessKeyId": "check the credentials in the environment",
    "SignatureDoesNotMatch": "check the credentials in the environment",
    "403 Forbidden": "allow the credentials to list, read, write and delete in it",
    "401 Unauthorized": "check the credentials in the environment",
    "404 Not Found": "make the bucket, or correct its name",
}


def _text(error: uniffi.Error) -> str:
    return str(getattr(error, "message", error))


@contextmanager
def _with_variables(variables: dict[str, str]) -> Iterator[None]:
    """The store reads its settings from the environment, so what the URL says is put there for a moment."""
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
