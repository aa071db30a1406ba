"""The timeline of a run page: events folded into cards, on the first page and live."""
