"""OTLP: traces and log events of programs that are instrumented with OpenTelemetry become external runs."""
