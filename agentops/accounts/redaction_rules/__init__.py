"""Redaction rules of projects: stored, loaded into each process, and changed on a page."""
