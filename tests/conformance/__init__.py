"""The specification in code: the behaviour of every engine, tested through the broker.

A new engine is one entry in ``tests/support/engines.py``. A test is skipped only by a declared capability.
"""
