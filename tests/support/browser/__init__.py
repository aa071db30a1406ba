"""Browser tabs, and what tests read off a page."""
