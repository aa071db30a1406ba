"""Alerts: rules, their findings, when findings are announced, and the messages to people and programs."""
