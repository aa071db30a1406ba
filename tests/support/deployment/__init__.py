"""The compose file, and sites of `agentops up`."""
