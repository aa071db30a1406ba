"""The tables of flows."""
