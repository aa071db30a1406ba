"""Recorded sessions beside the project, and what is in them."""
