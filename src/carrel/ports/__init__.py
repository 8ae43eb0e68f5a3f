"""Ports of spaces on the host's loopback: listeners, and the bytes of their connections."""
