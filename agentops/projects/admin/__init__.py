from agentops.projects.admin import audit, keys, members, people, projects

__all__ = ["audit", "keys", "members", "people", "projects"]
