"""Settings of a project that concern runs: approval rules, alert rules, sinks, limits and prices."""
