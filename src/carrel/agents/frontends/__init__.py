"""Frontends: one for each kind of agent, and its driver."""
