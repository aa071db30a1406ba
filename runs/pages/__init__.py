"""The web pages of runs."""
