"""Dedicated MCP servers: when each step of one is done, and when it ends."""

from carrel.service.instances.manager import InstanceParts, InstanceRules, Instances

__all__ = ["InstanceParts", "InstanceRules", "Instances"]
