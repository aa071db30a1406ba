"""Metrics for Prometheus: counts that are added up from the log, and gauges that are read when somebody asks."""
