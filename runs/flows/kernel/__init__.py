"""The kernel of flows: a snapshot and reports in, decisions out. No tables, no clock, no random numbers."""
