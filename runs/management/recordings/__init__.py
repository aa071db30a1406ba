"""Shared code of the commands about fixtures."""
