"""Schedules: their due times, which of them start a run, and changes to them."""
