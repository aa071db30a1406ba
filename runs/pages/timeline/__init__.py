"""The timeline on a run's page: events folded into cards, as a first paint and live."""
