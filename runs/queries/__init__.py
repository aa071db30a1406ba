"""Optimised reads: lists whose rows are built as JSON in SQL, full-text search, durations and states of runs."""
