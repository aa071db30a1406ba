"""The inbox of approvals in the API."""
