"""Applies the policies of an agent to a run without a person."""
