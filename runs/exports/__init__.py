"""Runs and lists of runs as files: JSON, JSONL, CSV and HTML, redacted as pages are, made in bounded memory."""
