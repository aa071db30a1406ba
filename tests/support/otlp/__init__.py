"""OTLP as its senders write it: spans, log records and whole bodies."""
