"""The messages of a run, and the requests to the model that are built from them."""
