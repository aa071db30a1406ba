"""Exports: events to sinks, traces to Langfuse and OpenTelemetry, metrics to Prometheus."""
