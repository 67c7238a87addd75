"""Hostile inputs, and how the fuzz tests run.

A test draws the same few examples each time. ``make fuzz`` draws many others.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st


def few(share: float = 1.0) -> settings:
    """Return the settings of a fuzz test: that share of the examples of the profile."""
    examples = settings().max_examples
    return settings(max_examples=round(examples * share), deadline=None, derandomize=examples <= 100)


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
"""Text of any characters, also NUL and lone surrogates, which can't be encoded."""

AWKWARD = st.sampled_from(
    [
        "", "0", "-1", "1e309", "nan", "9" * 400, "\0", "\r\n", "%00", "%", "%zz", "..", "../" * 20,
        "a" * 5000, "é", "\u202e", "\ud800", "<script>", "'", '"', "{}", "[]", "null", "${x}", "=", "&", ";",
        "[::1", "*",
    ]
)  # fmt: skip

TEXT = ANY_TEXT | AWKWARD
