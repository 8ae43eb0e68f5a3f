"""docs/client.md and docs/agents.md, in Python."""

from __future__ import annotations

import carrel
from tests.daemon.rig import Daemon, fresh_daemon


def test_a_conversation_goes_on_with_what_the_turn_before_gave() -> None:
    """Nothing at all, or what a turn that failed left: neither is an error."""
    with fresh_daemon(listen=None) as daemon, _client(daemon) as client:
        space = client.create(None, agent="scripted")
        first = space.send("say one", continuation=None)
        assert first.state == "complete" and first.continuation is not None
        failed = space.send("fail for a reason", continuation=first.continuation)
        assert failed.state == "error"
        again = space.send("hello", continuation=failed.continuation)
        assert again.state == "complete"
        space.remove(force=True)


def _client(daemon: Daemon) -> carrel.Client:
    return carrel.Client(data=daemon.data, autostart=False)
