"""Settings of a project that concern runs: approval rules and prices."""
