"""The ledger: append-only logs of events. It knows nothing of runs."""
