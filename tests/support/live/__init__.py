"""Streamed runs, and settings of the processes that stream them."""
