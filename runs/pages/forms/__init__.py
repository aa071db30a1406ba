"""Forms that start and fork runs."""
