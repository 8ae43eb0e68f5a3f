"""Carrel: a private desk for every coding-agent session."""

__version__ = "0.1.0"
