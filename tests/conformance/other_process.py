"""A separate process with an open broker: ``python -m tests.conformance.other_process URL``.

Each input line is a command: a JSON array of a verb and its arguments. Each reply is one JSON line.
The clock of the process stands still at the time at which every test's clock starts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from dayjob import Broker, BrokerConfig, Job
from dayjob.testing import ManualClock


class OtherProcess:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._claims: list[Job] = []

    async def enqueue(self, queue: str, keys: list[str]) -> list[bool]:
        """Enqueue a job for each dedup key concurrently. Return which were created."""
        calls = [self._broker.enqueue(queue, dedup_key=key) for key in keys]
        return [answer.created for answer in await asyncio.gather(*calls)]

    async def enqueue_plain(self, queue: str) -> str:
        return (await self._broker.enqueue(queue)).id

    async def claim(self, queue: str, limit: int) -> list[str]:
        self._claims = await self._broker.claim(queue, limit=limit)
        return [job.id for job in self._claims]

    async def claim_all(self, queue: str) -> list[str]:
        """Claim and ack until nothing is left. Return the ids."""
        ids: list[str] = []
        while claimed := await self._broker.claim(queue, limit=3):
            ids += [job.id for job in claimed]
            await asyncio.gather(*(self._broker.ack(job) for job in claimed))
        return ids

    async def ack(self) -> None:
        for job in self._claims:
            await self._broker.ack(job)

    async def wait_for_cancel(self) -> bool:
        await self._claims[0].cancel_token.wait()
        return self._claims[0].cancel_requested

    async def cancel(self, id: str) -> str:
        return await self._broker.cancel(id)

    async def pause(self, queue: str) -> None:
        await self._broker.pause(queue)


async def main(url: str) -> None:
    async with Broker(url, config=BrokerConfig(duties=False), clock=ManualClock()) as broker:
        other = OtherProcess(broker)
        print(json.dumps("open"), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, *arguments = json.loads(line)
            answer: Any = await getattr(other, verb)(*arguments)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
