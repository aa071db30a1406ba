"""The inbox of calls and questions that wait for a person, the decisions, and the links in e-mails."""
