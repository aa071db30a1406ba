"""The pages of agents: the list, an agent with its versions, and the forms that create and change agents."""
