"""The API of sinks and webhooks, and the metrics of the site."""
