"""The forms that start and fork runs."""
