"""The sinks of a project: their list, their forms, and the deliveries of each."""
