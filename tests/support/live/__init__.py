"""Runs that are streamed, and settings of the processes that stream them."""
