"""Runs that somebody else executes: their events are received, and projected into the same rows as those of workers."""
