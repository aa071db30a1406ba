"""Exports: events to sinks and webhooks, traces to Langfuse and OpenTelemetry, metrics to Prometheus."""
