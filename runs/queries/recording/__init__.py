"""Fixtures made of stored runs."""
