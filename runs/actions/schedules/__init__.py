"""Schedules: their due times, the runs that they start, and changes to them."""
