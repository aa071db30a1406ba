"""Recorded sessions, and independent counts of their contents."""
