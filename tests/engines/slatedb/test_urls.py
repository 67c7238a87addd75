"""From a URL to a place, and from a store's refusal to words that help. Nothing here reaches a network."""

from __future__ import annotations

from typing import Any

import pytest
from slatedb import uniffi

from dayjob import Broker, ConfigError, EngineFenced, EngineUnavailable
from dayjob.engines.registry import create_engine
from dayjob.engines.slatedb.place import Place
from dayjob.runtime.clock import SYSTEM
from tests.engines.slatedb.conftest import QUIET


def place_of(url: str) -> Place:
    engine: Any = create_engine(url, SYSTEM)
    place: Place = engine._place
    return place


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
def test_where_it_is(url: str, store: str, path: str) -> None:
    place = place_of(url)
    assert (place.url, place.store, place.path) == (url, store, path)


def test_a_folder_and_a_bucket_have_defaults_of_their_own() -> None:
    local, remote = place_of("file:///jobs"), place_of("s3://bucket/jobs")
    assert (local.flush_ms, remote.flush_ms) == (5, 100)
    assert (local.beat, remote.beat) == (10, 30)
    assert not local.take_over
    assert not local.read_only


def test_options_of_the_url_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYJOB_SLATEDB_FLUSH_MS", "50")
    assert place_of("s3://bucket/jobs").flush_ms == 50
    assert place_of("s3://bucket/jobs?flush_ms=20").flush_ms == 20
    monkeypatch.setenv("DAYJOB_SLATEDB_FLUSH_MS", "soon")
    with pytest.raises(ConfigError, match="flush_ms='soon'"):
        place_of("s3://bucket/jobs")


def test_region_and_endpoint_become_the_store_s_variables() -> None:
    place = place_of("s3://bucket/jobs?region=eu-west-1&endpoint=http://127.0.0.1:9000")
    assert dict(place.variables) == {
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT": "http://127.0.0.1:9000",
        "AWS_ALLOW_HTTP": "true",
    }
    assert "AWS_ALLOW_HTTP" not in dict(place_of("s3://bucket/jobs?endpoint=https://store").variables)


def test_two_endpoints_are_two_databases() -> None:
    one, other = place_of("s3://b/jobs?endpoint=https://one"), place_of("s3://b/jobs?endpoint=https://other")
    assert one.identity != other.identity
    assert one.identity == place_of("s3://b/jobs/?endpoint=https://one&flush_ms=7").identity


async def test_a_store_that_lacks_settings_is_told_before_it_is_asked(
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
    place = place_of("s3://bucket/jobs")
    told = place.translated(uniffi.Error.Unavailable(message), opening=True)
    assert isinstance(told, ConfigError)
    assert remedy in str(told)
    assert message in str(told)
    assert isinstance(place.translated(uniffi.Error.Unavailable(message)), EngineUnavailable)


def test_a_fence_is_told_as_one() -> None:
    error = uniffi.Error.Closed(uniffi.CloseReason.FENCED, "detected newer DB client")
    assert isinstance(place_of("s3://bucket/jobs").translated(error), EngineFenced)
