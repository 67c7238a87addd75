"""Runs under random faults, a record of every call, and a checker that replays the record."""
