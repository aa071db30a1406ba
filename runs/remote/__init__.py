"""Runs that durable functions execute, elsewhere over HTTP or in workers, under the rules and leases of this site."""
