"""Stored runs again: their replay, and as fixtures."""
