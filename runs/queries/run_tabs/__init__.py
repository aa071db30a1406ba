"""What the tabs of a run's page list: one bounded query, or two, for each."""
