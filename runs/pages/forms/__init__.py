"""The fields of forms, and the form that starts a run."""
