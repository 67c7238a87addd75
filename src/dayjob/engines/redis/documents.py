"""Notes, as the sorted set ``notes`` holds them; ``lua/write_notes.lua`` is the other side of this layout.

A note is one member: its kind, NUL, its name, NUL, when it was written (8 bytes, big endian), and its value.
Neither kind nor name holds a NUL, so a kind is one range, in the order of the names' bytes.
"""

from __future__ import annotations

from dayjob.engines.base import Document
from dayjob.engines.redis.link import Link
from dayjob.engines.redis.record import TIME


async def read(link: Link, kind: str) -> tuple[int, list[Document]]:
    """The server's time, no earlier than any of the notes, and the notes of the kind."""
    head = kind.encode()
    members, (seconds, micros) = await link.ask(
        ("ZRANGEBYLEX", link.place.keys.documents, b"[%b\0" % head, b"(%b\1" % head), ("TIME",)
    )
    found = [_note(member[len(head) + 1 :]) for member in members]
    return int(seconds) * 1_000_000 + int(micros), found


def _note(member: bytes) -> Document:
    name, _, rest = member.partition(b"\0")
    return Document(name.decode(), rest[TIME.size :], TIME.unpack_from(rest)[0])
