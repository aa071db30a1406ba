"""The API of flows and flow runs."""
