"""The environment of schedules: workers, clients, servers, the model and its tools."""
