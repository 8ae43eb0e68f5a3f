"""Requests: the order of their steps, who waits for whom, and what is kept of them."""

from carrel.service.requests.book import RequestParts, RequestRules
from carrel.service.requests.manager import Requests

__all__ = ["RequestParts", "RequestRules", "Requests"]
