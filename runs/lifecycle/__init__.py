"""The only writer of a run's status: transitions, creation, the inbox, questions, and the wake-up of workers."""
