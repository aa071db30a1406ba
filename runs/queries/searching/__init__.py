"""Searches of runs and of their texts: terms, the index of texts, results."""
