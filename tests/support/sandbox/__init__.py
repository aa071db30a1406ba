"""Attacks on the sandbox of commands, and what they look for outside of it."""
