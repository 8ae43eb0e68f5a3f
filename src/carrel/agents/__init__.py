"""Frontends: how each agent is found, started and understood."""
