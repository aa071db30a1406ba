"""Plugins of the suite: fixtures and checks that are there for every test."""
