"""The inbox of calls and questions that wait for a person, the decisions, and the link of an e-mail."""
