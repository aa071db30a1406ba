"""What leaves the site: events to sinks and webhooks, traces to Langfuse and OpenTelemetry, metrics to Prometheus."""
