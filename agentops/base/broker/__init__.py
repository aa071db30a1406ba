"""Celery's broker: Redis, or the memory of the worker's process, and which messages a worker may take from it."""
