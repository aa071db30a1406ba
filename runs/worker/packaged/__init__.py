"""Agents whose durable functions installed packages contain: found, registered, and executed in this worker."""
