"""Optimised reads: lists whose rows are built as JSON in SQL, full-text search, and durations of runs."""
