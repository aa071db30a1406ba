"""What was said in a run, and how a request to the model is built from it."""
