"""What is read of flows and flow runs: states at a sequence number, and graphs for pages and the API."""
