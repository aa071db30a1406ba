"""The search in texts: its query and its answer."""
