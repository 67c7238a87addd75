"""The pure model: job, lifecycle, policies, codec. No I/O, no clock, no threads."""
