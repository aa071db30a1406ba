"""Ingest: the events of external runners, and the files of other programs, by HTTP."""
