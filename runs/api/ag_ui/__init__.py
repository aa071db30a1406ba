"""AG-UI over HTTP: front ends that speak the protocol start, continue and follow runs."""
