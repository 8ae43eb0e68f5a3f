"""Dedicated MCP servers: when each step of one is done, and when it ends."""

from carrel.service.instances.book import InstanceParts, InstanceRules
from carrel.service.instances.manager import Instances

__all__ = ["InstanceParts", "InstanceRules", "Instances"]
