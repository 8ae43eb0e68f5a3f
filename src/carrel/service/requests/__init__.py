"""Requests: the order of their steps, who waits for whom, and what is kept of them."""

from carrel.service.requests.manager import Requests
from carrel.service.requests.parts import RequestParts
from carrel.service.requests.rules import RequestRules

__all__ = ["RequestParts", "RequestRules", "Requests"]
