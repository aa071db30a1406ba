"""Model providers: requests, retries, error messages and the stored form of messages."""
