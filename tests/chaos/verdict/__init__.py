"""Checks after a schedule, and the report on all schedules."""
