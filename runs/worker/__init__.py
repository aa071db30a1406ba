"""The worker process: its start under Celery, its leases, the sweep, upkeep, and the trial of suspected runs."""
