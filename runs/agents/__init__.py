"""What an agent is and may spend: its definition, policies, budgets and retry limits."""
