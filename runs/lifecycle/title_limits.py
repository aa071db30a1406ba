"""Limits of the titles and labels of a run."""

from __future__ import annotations

#: Maximum length in characters.
MAX_TITLE = 200
#: Maximum number of labels of a run, and characters of each.
MAX_LABELS, MAX_LABEL = 32, 64
