"""The pages on which admins manage a project (members, API keys, audit log), and users their account."""
