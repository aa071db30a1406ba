"""Runs that external programs execute. Their events are projected into the same rows as the events of workers."""
