"""A tool, a provider and a hook of a shop."""
