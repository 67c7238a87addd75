"""Helpers of the tests: servers, storages, builders, waits and worker processes."""
