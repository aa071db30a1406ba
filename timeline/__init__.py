"""Append-only logs of events. This app does not depend on runs."""
