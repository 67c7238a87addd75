"""The read model: what the command line, the dashboard and the metrics show."""
