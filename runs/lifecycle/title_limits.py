"""Limits of the titles and labels of a run."""

from __future__ import annotations

#: Characters.
MAX_TITLE = 200
#: Labels of a run, and characters of each.
MAX_LABELS, MAX_LABEL = 32, 64
