"""Helpers for the tests of agentops.client."""
