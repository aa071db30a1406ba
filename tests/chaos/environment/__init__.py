"""Where schedules are played: workers, clients, servers, the model and its tools."""
