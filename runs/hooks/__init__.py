"""Hooks: the code of a site that watches a run and decides about its tool calls and turns."""
