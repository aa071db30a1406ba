"""Plugins of the suite: fixtures and checks for every test."""
