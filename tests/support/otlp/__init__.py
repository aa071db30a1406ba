"""OTLP as senders write it: spans, log records and whole bodies."""
