"""Limits on computation defined by users: schemas, expressions, patterns, and compressed files."""
