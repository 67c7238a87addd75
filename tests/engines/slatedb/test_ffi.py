"""The fast FFI: it is used, it agrees with the plain one, and it can be switched off."""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from slatedb import uniffi
from slatedb.uniffi._slatedb_uniffi import slatedb as raw

from dayjob import Broker, NewJob
from dayjob.engines.slatedb import ffi
from dayjob.engines.slatedb.ffi import FastFfi, Ffi, PlainFfi, choose
from tests.engines.slatedb.conftest import QUIET

SAMPLES = {
    b"\x01j" + bytes(range(16)): bytes(range(256)) * 300,
    b"\x01k": b"",
    b"\x01k\x00": b"\x00",
    b"\x01k\xff" * 300: b"x",
}


def test_this_release_of_slatedb_allows_the_fast_ffi() -> None:
    """If this fails, a new release of slatedb has another layout: adapt ``FastFfi``, or jobs get slower."""
    assert isinstance(choose(), FastFfi), "SlateDB's binding has changed: the engine works, but slowly"


def test_the_fast_ffi_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ffi.SWITCH, "0")
    assert isinstance(choose(), PlainFfi)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (raw._UniffiRustBuffer, "alloc"),
        (raw, "_uniffi_rust_call_with_error"),
        (raw, "_uniffi_rust_call_async"),
        (raw.WriteBatch, "_uniffi_clone_handle"),
    ],
)
def test_a_binding_of_another_shape_uses_the_plain_ffi(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    assert isinstance(choose(), PlainFfi)


def test_a_binding_with_other_buffers_uses_the_plain_ffi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffi, "_LENGTH", Struct("<i"))
    assert isinstance(choose(), PlainFfi)


@pytest.mark.parametrize("writer", [PlainFfi(), FastFfi(raw)], ids=["plain", "fast"])
@pytest.mark.parametrize("reader", [PlainFfi(), FastFfi(raw)], ids=["plain", "fast"])
async def test_both_write_and_read_the_same(tmp_path: Path, writer: Ffi, reader: Ffi) -> None:
    database = await uniffi.DbBuilder(str(tmp_path / "db"), uniffi.ObjectStore.resolve("file:///")).build()
    batch = uniffi.WriteBatch()
    writer.put(batch, b"\x01gone", b"x")
    for key, value in SAMPLES.items():
        writer.put(batch, key, value)
    writer.delete(batch, b"\x01gone")
    await database.write(batch)
    bounds = uniffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False)
    iterator = await database.scan_prefix(b"\x01", bounds)
    rows = [*await reader.rows(iterator, 2), *await reader.rows(iterator, 10)]
    assert rows == sorted(SAMPLES.items())
    assert await reader.rows(iterator, 10) == []
    await database.shutdown()


async def test_both_raise_the_same_error(tmp_path: Path) -> None:
    batch = uniffi.WriteBatch()
    for one in (PlainFfi(), FastFfi(raw)):
        with pytest.raises(uniffi.Error.Invalid):
            one.put(batch, b"", b"an empty key is refused")


async def test_jobs_pass_through_the_plain_ffi(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ffi.SWITCH, "0")
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q", b"%d" % number) for number in range(30)])
    async with Broker(url, config=QUIET) as broker:
        jobs = await broker.claim("q", limit=30)
        assert [job.payload for job in jobs] == [b"%d" % number for number in range(30)]
