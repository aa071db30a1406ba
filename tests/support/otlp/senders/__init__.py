"""Programs that send OTLP with third-party libraries. Each runs in a separate process."""
