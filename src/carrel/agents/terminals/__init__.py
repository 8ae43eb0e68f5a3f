"""Agents in terminals: a tmux server in the space, a supervisor, and what hooks tell."""
