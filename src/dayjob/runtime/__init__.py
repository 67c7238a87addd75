"""The process: clock, randomness, ids, signals, and the bridge between threads and event loops."""
