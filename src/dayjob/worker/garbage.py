"""Garbage collection for a process that does nothing but work."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 50)


def collect_less_often() -> None:
    """Leave what was imported out of collections, and make them rarer.

    A worker makes many objects that live as long as a job and few that form cycles; at the usual
    thresholds it spends a fifth of its time looking for the latter. For processes of our own only, as
    it is global.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
