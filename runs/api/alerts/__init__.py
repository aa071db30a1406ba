"""Alerts, alert rules and mutes in the API."""
