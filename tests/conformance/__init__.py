"""The specification in code: what every engine does, seen through the broker.

A new engine is one line in ``engines.py``. A test is skipped only by a declared capability.
"""
