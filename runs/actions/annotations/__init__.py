"""User annotations of runs and of the run list: labels, notes, saved views, share links. All changes are audited."""
