"""The format of notifications: a sender, and the topics that may have changed."""

from __future__ import annotations

import msgspec

from dayjob.runtime.signals import Topic

_MAX_BYTES = 7_500
"""The longest message; the server takes just under 8,000 bytes."""

Item = tuple[str, str, int]
"""The kind and the name of a topic, and for a queue the lowest priority of its new jobs."""

WAIT = "wait"
"""The kind of an item that announces: the sender waits for the end of this job."""

_JOB_KINDS = ("job", WAIT)

EVERYTHING: Item = ("*", "", 0)
RETURNED = -1
"""In place of a priority: jobs came back to the queue, anywhere in its order."""

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(tuple[str, list[Item]]).decode


def encode(sender: str, items: list[Item]) -> str:
    """Return the text of a message. One that would be too long announces that anything may have changed."""
    text = _encode((sender, items))
    return (text if len(text) <= _MAX_BYTES else _encode((sender, [EVERYTHING]))).decode()


def decode(message: str) -> tuple[str, list[Item]]:
    """Return the sender and the items. A message that can't be decoded stands for everything."""
    try:
        sender, items = _decode(message)
        for kind, name, _ in items:
            if kind in _JOB_KINDS:
                bytes.fromhex(name)
    except (msgspec.MsgspecError, ValueError):
        return "", [EVERYTHING]
    return sender, items


def topic_item(topic: Topic, priority: int = RETURNED) -> Item:
    kind, name = topic
    return (kind, name.hex() if isinstance(name, bytes) else name, priority)
