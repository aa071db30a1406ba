"""The page that compares two runs."""
