"""Exports of runs and lists of runs: JSON, JSONL, CSV and HTML, redacted as pages are, generated in bounded memory."""
