"""Rows for the tests of the Django admin."""
