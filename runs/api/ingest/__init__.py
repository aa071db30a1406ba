"""Ingest: the events of external runners, by HTTP."""
