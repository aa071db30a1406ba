"""Template tags of runs."""
