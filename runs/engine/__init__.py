"""The step loop: how a worker executes one run until the run waits, ends or returns to the queue."""
