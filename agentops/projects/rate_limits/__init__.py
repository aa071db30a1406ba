"""Rate limits of the API, for each key, user and address."""
