"""The life of a run: its creation, its status, its inbox of commands, its questions, and the wake-up of workers."""
