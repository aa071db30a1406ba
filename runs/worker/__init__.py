"""The worker process: its slots, the sweep that finds work, quarantine and housekeeping."""
