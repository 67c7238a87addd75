"""Benchmarks of dayjob, as ratios within one run: ``python -m benchmarks --help``; see docs/benchmarks.md.

A measure is a function in the file of its theme. It compares variants of the same work, which take turns on
one machine, so that other load slows all of them alike. It returns ``Result`` values. Results with a required
bound decide the exit code.
"""
