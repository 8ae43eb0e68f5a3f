"""Dedicated MCP servers: how each kind is started, where it listens, whether it answers."""
