"""The tables of telemetry: sinks, how far each has got, and deliveries."""
