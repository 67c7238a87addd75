"""A simple queue on SlateDB as the reference: one transaction for each operation.

It has the obvious rows: the job, and an entry in the order of the queue. A claim scans for the first entry,
an ack checks that the claim is current. Each waits until its commit is durable, as dayjob does.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from slatedb import uniffi

from dayjob.runtime.ids import new_key

_ALL = uniffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False)


class Port:
    """Enqueue, claim and ack, one job at a time."""

    def __init__(self, database: uniffi.Db) -> None:
        self._database = database
        self._claim_lock = asyncio.Lock()
        """Two concurrent claims would conflict on the first job, and one would be retried."""

    @classmethod
    async def open(cls, path: str, flush_ms: int) -> Port:
        settings = uniffi.Settings.default()
        settings.set("flush_interval", json.dumps(f"{flush_ms}ms"))
        builder = uniffi.DbBuilder(path, uniffi.ObjectStore.resolve("file:///"))
        builder.with_settings(settings)
        return cls(await builder.build())

    async def close(self) -> None:
        await self._database.shutdown()

    async def _begin(self) -> Any:
        return await self._database.begin(uniffi.IsolationLevel.SERIALIZABLE_SNAPSHOT)

    async def enqueue(self, payload: bytes) -> bytes:
        key = new_key()
        transaction = await self._begin()
        await transaction.put(b"job" + key, json.dumps(["pending", 0, payload.decode()]).encode())
        await transaction.put(b"pending" + key, b"")
        await (await transaction.commit()).await_durable()
        return key

    async def claim(self) -> tuple[bytes, int, bytes] | None:
        async with self._claim_lock:
            transaction = await self._begin()
            first = await (await transaction.scan_prefix(b"pending", _ALL)).next()
            if first is None:
                await transaction.rollback()
                return None
            key = first.key[len(b"pending") :]
            _, epoch, payload = json.loads(await transaction.get(b"job" + key))
            await transaction.put(b"job" + key, json.dumps(["running", epoch + 1, payload]).encode())
            await transaction.delete(first.key)
            handle = await transaction.commit()
        await handle.await_durable()
        return key, epoch + 1, payload.encode()

    async def ack(self, key: bytes, epoch: int) -> bool:
        transaction = await self._begin()
        stored = await transaction.get(b"job" + key)
        if stored is None or json.loads(stored)[:2] != ["running", epoch]:
            await transaction.rollback()
            return False
        await transaction.delete(b"job" + key)
        await (await transaction.commit()).await_durable()
        return True


async def drain(port: Port, concurrency: int) -> int:
    """Claim and ack with this concurrency until the queue is empty. Return the number of jobs."""

    async def work() -> int:
        done = 0
        while (claimed := await port.claim()) is not None:
            done += await port.ack(*claimed[:2])
        return done

    return sum(await asyncio.gather(*(work() for _ in range(concurrency))))
