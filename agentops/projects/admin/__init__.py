from agentops.projects.admin import audit, keys, members, notifications, people, projects

__all__ = ["audit", "keys", "members", "notifications", "people", "projects"]
