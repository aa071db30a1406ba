"""Flows for tests."""
