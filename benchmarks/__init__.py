"""How fast dayjob is, as ratios within one run: ``python -m benchmarks --help``; see docs/benchmarks.md.

A measure is a function in the file of its theme. It compares two ways of doing the same work, turn by
turn on the same machine, so that whatever else the machine does weighs on both. What it finds is a
``Finding``; those with a bound that must hold decide the exit code.
"""
