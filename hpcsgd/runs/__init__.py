"""One run, from a configuration to a result."""
