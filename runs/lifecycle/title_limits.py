"""How long what people name a run by may be."""

from __future__ import annotations

#: Characters.
MAX_TITLE = 200
#: Labels of a run, and the characters of each.
MAX_LABELS, MAX_LABEL = 32, 64
