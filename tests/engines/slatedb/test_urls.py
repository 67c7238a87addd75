"""URLs become settings, and a refusal of the store becomes a helpful error. No test uses a network."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from slatedb import uniffi

from dayjob import Broker, ConfigError, EngineFenced, EngineUnavailable
from dayjob.engines.base import Transient
from dayjob.engines.registry import create_engine
from dayjob.engines.slatedb.engine import diagnose
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.runtime.clock import SYSTEM
from tests.engines.slatedb.conftest import QUIET
from tests.support.bound import BOUND


def settings_of(url: str) -> SlateSettings:
    engine: Any = create_engine(url, SYSTEM)
    settings: SlateSettings = engine.settings
    return settings


@pytest.mark.parametrize(
    ("url", "store", "path"),
    [
        ("file:///var/lib/jobs", "file:///", "/var/lib/jobs"),
        ("file:///var/lib/jobs%3F/", "file:///", "/var/lib/jobs?"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3://bucket/a/b/", "s3://bucket", "a/b"),
        ("s3://bucket", "s3://bucket", "dayjob"),
        ("gs://bucket/a", "gs://bucket", "a"),
        ("az://container/a", "az://container", "a"),
    ],
)
def test_a_url_has_a_store_and_a_path(url: str, store: str, path: str) -> None:
    settings = settings_of(url)
    assert (settings.url, settings.store, settings.path) == (url, store, path)


@pytest.mark.parametrize("url", ["file:///var/lib/jobs", "s3://bucket/a/b", "s3://bucket"])
def test_the_diagnostic_of_the_layout_names_the_url(url: str) -> None:
    texts = {each.check: each.text for each in diagnose(settings_of(f"{url}?readonly=1"))}
    assert texts["layout"].endswith(f" at {url}")


def test_a_folder_and_a_bucket_have_different_defaults() -> None:
    local, remote = settings_of("file:///jobs"), settings_of("s3://bucket/jobs")
    assert (local.flush_ms, remote.flush_ms) == (5, 100)
    assert (local.beat, remote.beat) == (10, 30)
    assert not local.take_over
    assert not local.read_only


def test_options_of_the_url_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYJOB_SLATEDB_FLUSH_MS", "50")
    assert settings_of("s3://bucket/jobs").flush_ms == 50
    assert settings_of("s3://bucket/jobs?flush_ms=20").flush_ms == 20
    monkeypatch.setenv("DAYJOB_SLATEDB_FLUSH_MS", "soon")
    with pytest.raises(ConfigError, match="flush_ms='soon'"):
        settings_of("s3://bucket/jobs")


def test_region_and_endpoint_become_the_store_s_variables() -> None:
    settings = settings_of("s3://bucket/jobs?region=eu-west-1&endpoint=http://127.0.0.1:9000")
    assert dict(settings.variables) == {
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT": "http://127.0.0.1:9000",
        "AWS_ALLOW_HTTP": "true",
    }
    assert "AWS_ALLOW_HTTP" not in dict(settings_of("s3://bucket/jobs?endpoint=https://store").variables)


@pytest.mark.parametrize(
    ("url", "variables"),
    [
        ("gs://b/jobs?endpoint=https://store", {"GOOGLE_BASE_URL": "https://store"}),
        (
            "az://c/jobs?endpoint=http://127.0.0.1:1/account",
            {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1/account", "AZURE_ALLOW_HTTP": "true"},
        ),
    ],
)
def test_every_bucket_takes_an_endpoint(url: str, variables: dict[str, str]) -> None:
    assert dict(settings_of(url).variables) == variables


def test_two_endpoints_are_two_databases() -> None:
    one, other = (
        settings_of("s3://b/jobs?endpoint=https://one"),
        settings_of("s3://b/jobs?endpoint=https://other"),
    )
    assert one.identity != other.identity
    assert one.identity == settings_of("s3://b/jobs/?endpoint=https://one&flush_ms=7").identity


async def test_a_store_without_settings_is_refused_before_any_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    url = "az://container/jobs"
    with pytest.raises(
        ConfigError, match=r"Account must be specified.*credentials in the environment"
    ) as caught:
        await Broker(url, config=QUIET).open()
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("404 Not Found: <Code>NoSuchBucket</Code>", "make the bucket"),
        ("403 Forbidden: <Code>AccessDenied</Code>", "allow the credentials"),
        ("403 Forbidden: <Code>InvalidAccessKeyId</Code>", "check the credentials"),
        ("Error performing PUT http://host/latest/api/token: 403 Forbidden", "set AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_refusal_comes_with_its_remedy(message: str, remedy: str) -> None:
    settings = settings_of("s3://bucket/jobs")
    error = settings.translated(uniffi.Error.Unavailable(message), opening=True)
    assert isinstance(error, ConfigError)
    assert remedy in str(error)
    assert message in str(error)
    assert isinstance(settings.translated(uniffi.Error.Unavailable(message)), EngineUnavailable)


def test_a_refused_conditional_write_is_a_take_over_only_at_opening() -> None:
    error = uniffi.Error.Closed(uniffi.CloseReason.FENCED, "detected newer DB client")
    settings = settings_of("s3://bucket/jobs")
    assert isinstance(settings.translated(error, opening=True), EngineFenced)
    assert isinstance(settings.translated(error), Transient)


async def test_a_reader_that_fails_again_and_again_ends_although_requests_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Builder:
        def __init__(self, *_: object) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        async def build(self) -> None:
            raise uniffi.Error.Unavailable("an object is damaged")

    monkeypatch.setattr(uniffi, "DbReaderBuilder", Builder)
    requests = count(1)
    monkeypatch.setattr("dayjob.engines.slatedb.settings._succeeded", lambda _: next(requests))
    async with asyncio.timeout(BOUND):
        with pytest.raises(EngineUnavailable, match="an object is damaged"):
            await settings_of("file:///jobs?timeout=0.3").open_reader()
