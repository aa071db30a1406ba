"""Alerts: rules, what they find, when that is announced, and the messages to people and programs."""
