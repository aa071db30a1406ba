"""Rows and users for the tests of the Django admin."""
