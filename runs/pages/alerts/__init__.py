"""The pages of alerts: what was found, and the rules."""
