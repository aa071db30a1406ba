"""The programs that execute the task. Each is a file for the environment of its system."""
