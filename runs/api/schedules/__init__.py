"""Schedules, their starts, and runs that are started by hand."""
