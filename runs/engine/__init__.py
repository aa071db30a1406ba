"""The step loop: what a worker does with one run until the run waits, ends or goes back to the queue."""
