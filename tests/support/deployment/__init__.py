"""Helpers for the tests of the compose file and of `agentops up`."""
