"""Calls across the FFI of SlateDB: a plain implementation, and a fast one that copies bytes in one step.

The generated binding copies bytes one at a time and reads a row field by field. ``FastFfi`` makes the same
calls with the same buffers, each filled by one copy. It uses private names of the binding. It is therefore
used only if those exist and both implementations agree byte for byte. Otherwise, and with
``DAYJOB_SLATEDB_FAST=0`` in the environment, ``PlainFfi`` is used. Nothing in the binding is replaced.
"""

from __future__ import annotations

import ctypes
import logging
import os
from struct import Struct
from typing import Any

from slatedb import uniffi

Row = tuple[bytes, bytes]

_log = logging.getLogger("dayjob.engines.slatedb")

SWITCH = "DAYJOB_SLATEDB_FAST"

_LENGTH = Struct(">i")
_ROW_TAIL = Struct(">QqB")
"""The fields after key and value: sequence number, creation time, and whether an expiry follows."""


class PlainFfi:
    """The documented calls of the binding that move many bytes."""

    def put(self, batch: uniffi.WriteBatch, key: bytes, value: bytes) -> None:
        batch.put(key, value)

    def delete(self, batch: uniffi.WriteBatch, key: bytes) -> None:
        batch.delete(key)

    async def rows(self, iterator: uniffi.DbIterator, limit: int) -> list[Row]:
        """Return the next rows. Fewer than ``limit`` are the last."""
        return [(row.key, row.value) for row in await iterator.next_batch(limit)]


class FastFfi:
    """The same calls with our own buffers. Raise AttributeError if the binding has another shape."""

    def __init__(self, raw: Any) -> None:
        library = raw._UniffiLib
        self._alloc = raw._UniffiRustBuffer.alloc
        self._call = raw._uniffi_rust_call_with_error
        self._call_async = raw._uniffi_rust_call_async
        self._errors = raw._UniffiFfiConverterTypeError
        self._put = library.uniffi_slatedb_uniffi_fn_method_writebatch_put
        self._delete = library.uniffi_slatedb_uniffi_fn_method_writebatch_delete
        self._next = library.uniffi_slatedb_uniffi_fn_method_dbiterator_next_batch
        self._future = (
            library.ffi_slatedb_uniffi_rust_future_poll_rust_buffer,
            library.ffi_slatedb_uniffi_rust_future_complete_rust_buffer,
            library.ffi_slatedb_uniffi_rust_future_free_rust_buffer,
        )
        self._check(raw)

    def _check(self, raw: Any) -> None:
        """Raise AttributeError unless both implementations agree."""
        for handle in (uniffi.WriteBatch, uniffi.DbIterator):
            handle._uniffi_clone_handle  # noqa: B018
        sample = bytes(range(256))
        ours, theirs = self.lower(sample), raw._UniffiFfiConverterBytes.lower(sample)
        same = _contents(ours) == _contents(theirs)
        ours.free()
        theirs.free()
        rows = [
            uniffi.KeyValue(key=b"", value=sample, seq=1, create_ts=-1, expire_ts=None),
            uniffi.KeyValue(key=sample, value=b"", seq=2**64 - 1, create_ts=5, expire_ts=7),
        ]
        lifted = self.lift(raw._UniffiFfiConverterSequenceTypeKeyValue.lower(rows))
        if not same or lifted != [(row.key, row.value) for row in rows]:
            raise AttributeError("the binding has another buffer layout")

    def lower(self, value: bytes) -> Any:
        size = len(value)
        buffer = self._alloc(size + 4)
        ctypes.memmove(buffer.data, _LENGTH.pack(size) + value, size + 4)
        buffer.len = size + 4
        return buffer

    def lift(self, buffer: Any) -> list[Row]:
        try:
            data = _contents(buffer)
        finally:
            buffer.free()
        (count,) = _LENGTH.unpack_from(data)
        rows, offset = [], 4
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(data, offset)
            offset += 4
            key = data[offset : offset + size]
            offset += size
            (size,) = _LENGTH.unpack_from(data, offset)
            offset += 4
            rows.append((key, data[offset : offset + size]))
            offset += size
            expires = _ROW_TAIL.unpack_from(data, offset)[2]
            offset += _ROW_TAIL.size + (8 if expires else 0)
        if offset != len(data):
            raise RuntimeError(f"{len(data) - offset} bytes are left in a buffer of rows")
        return rows

    def put(self, batch: Any, key: bytes, value: bytes) -> None:
        self._call(self._errors, self._put, batch._uniffi_clone_handle(), self.lower(key), self.lower(value))

    def delete(self, batch: Any, key: bytes) -> None:
        self._call(self._errors, self._delete, batch._uniffi_clone_handle(), self.lower(key))

    async def rows(self, iterator: Any, limit: int) -> list[Row]:
        rows: list[Row] = await self._call_async(
            self._next(iterator._uniffi_clone_handle(), limit), *self._future, self.lift, self._errors
        )
        return rows


def _contents(buffer: Any) -> bytes:
    return ctypes.string_at(buffer.data, buffer.len)


Ffi = PlainFfi | FastFfi


def choose() -> Ffi:
    """Return the fast implementation if the binding allows it and it is not switched off."""
    if os.environ.get(SWITCH, "1") != "0":
        try:
            from slatedb.uniffi._slatedb_uniffi import slatedb as raw

            return FastFfi(raw)
        except Exception as error:  # The plain implementation is always correct.
            _log.warning("SlateDB's binding has an unexpected shape (%r): calls across it are slower", error)
    return PlainFfi()
