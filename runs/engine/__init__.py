"""The step loop: what a worker does with one run until it waits, ends or is handed back."""
