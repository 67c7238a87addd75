"""Documents in the sorted set ``documents``; ``lua/compare_and_set.lua`` has the same layout.

A document is one member: its kind, NUL, its name, NUL, the time of its write (8 bytes, big endian), and its
value. Neither kind nor name has a NUL, so a kind is one range, in the byte order of the names.
"""

from __future__ import annotations

from contextlib import suppress
from struct import error as LayoutError

from dayjob.engines.base import Document
from dayjob.engines.redis.client import Client
from dayjob.engines.redis.record import TIME


async def read(client: Client, kind: str) -> tuple[int, list[Document]]:
    """Return the documents of the kind, and the server's time, no earlier than any of their writes.

    Damaged members are left out, so that they stop no duty.
    """
    prefix = kind.encode()
    members, (seconds, micros) = await client.execute(
        ("ZRANGEBYLEX", client.settings.keys.documents, b"[%b\0" % prefix, b"(%b\1" % prefix), ("TIME",)
    )
    found: list[Document] = []
    for member in members:
        name, _, rest = member[len(prefix) + 1 :].partition(b"\0")
        with suppress(UnicodeDecodeError, LayoutError):
            found.append(Document(name.decode(), rest[TIME.size :], TIME.unpack_from(rest)[0]))
    return int(seconds) * 1_000_000 + int(micros), found
