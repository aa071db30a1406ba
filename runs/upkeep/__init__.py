"""Maintenance of stored data: retention, invariants, the replay check and recovery after a restore."""
