"""Signing in: the form, its throttle, known browsers and sessions."""
