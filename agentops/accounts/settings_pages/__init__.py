"""The pages with which admins manage a project, and users their account: members, API keys, audit log, projects."""
