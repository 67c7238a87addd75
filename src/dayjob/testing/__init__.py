"""For tests of code that uses dayjob: a manual clock, a sandbox, jobs that run on demand, stored calls."""

from dayjob.testing.calls import EnqueuedCall, aassert_enqueued, aenqueued, assert_enqueued, enqueued
from dayjob.testing.clock import ManualClock
from dayjob.testing.running import adrain, drain, eager, sandbox

__all__ = [
    "EnqueuedCall",
    "ManualClock",
    "aassert_enqueued",
    "adrain",
    "aenqueued",
    "assert_enqueued",
    "drain",
    "eager",
    "enqueued",
    "sandbox",
]
