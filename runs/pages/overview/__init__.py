"""The start page of a project, its charts, and the list of projects."""
