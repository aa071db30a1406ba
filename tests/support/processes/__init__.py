"""Workers, brokers and databases that a test may kill."""
