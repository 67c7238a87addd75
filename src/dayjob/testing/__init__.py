"""For tests of code that uses dayjob: a manual clock, a sandbox, and jobs that run on demand."""

from dayjob.testing.clock import ManualClock
from dayjob.testing.running import adrain, drain, eager, sandbox

__all__ = ["ManualClock", "adrain", "drain", "eager", "sandbox"]
