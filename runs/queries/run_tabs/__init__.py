"""Queries for the tabs of a run's page: one or two bounded queries for each."""
