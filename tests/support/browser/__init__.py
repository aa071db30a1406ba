"""Browser tabs, and helpers that read a page."""
