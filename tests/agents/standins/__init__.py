"""Stand-ins for the APIs of models: the real programs of agents run against them, offline."""

from tests.agents.standins.script import UNKNOWN_MODEL
from tests.agents.standins.server import Seen, Standin, serving

__all__ = ["UNKNOWN_MODEL", "Seen", "Standin", "serving"]
