"""Pages of schedules: the list, one schedule with its starts, its form, and the actions on it."""
