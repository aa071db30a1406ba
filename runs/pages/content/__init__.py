"""Texts of runs as displayed to people: Markdown, code, diffs, terminal colours, JSON and images."""
