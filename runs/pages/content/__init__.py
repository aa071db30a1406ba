"""Texts of runs in the form in which people read them: Markdown, code, diffs, terminal colours, JSON and images."""
