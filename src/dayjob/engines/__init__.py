"""Storage engines. Each is reached by its URL through the registry and imported only then."""
