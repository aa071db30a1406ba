"""HTTP: what every request passes, in and out: limits, encodings, ids, health, error pages, the guarded client."""
