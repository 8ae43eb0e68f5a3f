"""Dedicated MCP servers: when each step of one is done, and when it ends."""

from carrel.service.instances.manager import Instances
from carrel.service.instances.parts import InstanceParts, InstanceRules

__all__ = ["InstanceParts", "InstanceRules", "Instances"]
