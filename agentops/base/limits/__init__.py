"""Limits of computation that people define: schemas, expressions, patterns, and files that expand."""
