"""Reads for the start page of a project: entries that need a person, running work, and sums of the last days."""
