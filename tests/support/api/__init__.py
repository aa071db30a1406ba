"""Requests and rows for the tests of the API."""
