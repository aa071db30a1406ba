"""The configuration of agents: definitions, policies, gates and budgets."""
