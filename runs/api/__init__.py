"""The HTTP API of runs."""
