"""The queue semantics over one engine."""

from dayjob.broker.broker import Broker

__all__ = ["Broker"]
