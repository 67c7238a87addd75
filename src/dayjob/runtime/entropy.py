"""The only source of randomness. A forked child reseeds it, so processes never share a sequence."""

from __future__ import annotations

import os
import random
import secrets

_source = random.Random()

bits = _source.getrandbits
"""``bits(n)``: a whole number of n random bits."""

fraction = _source.random
"""``fraction()``: a random number in [0, 1)."""

secret = secrets.token_urlsafe
"""``secret(n)``: n random bytes as text, cryptographically secure, for sessions."""


def _reseed() -> None:
    _source.seed(int.from_bytes(os.urandom(32)))


os.register_at_fork(after_in_child=_reseed)
