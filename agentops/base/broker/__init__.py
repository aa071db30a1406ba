"""Celery's broker: Redis, or the memory of the worker's process, and the limits on messages that a worker may take."""
