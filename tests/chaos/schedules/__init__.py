"""Schedules: faults at crash points, at steps, by seed, with contention, and with sabotage."""
