"""One file for each way to drive an agent."""
