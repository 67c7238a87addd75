"""The time limit of the tests' waits."""

BOUND = 90.0
"""Real seconds after which a wait fails. It is long, for slow machines: only a wait that fails takes it."""
