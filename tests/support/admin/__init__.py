"""Rows and people for the tests of the administration."""
