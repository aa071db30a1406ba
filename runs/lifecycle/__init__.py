"""The lifecycle of a run: its creation, its status, its inbox of commands, its questions, and waking workers."""
