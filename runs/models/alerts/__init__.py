"""The tables of alerts: rules, what they found, what was sent about it, and mutes."""
