"""The arithmetic of the benchmarks, which needs no server."""
