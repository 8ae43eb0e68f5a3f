"""How the streams in `tests/agents/streams` are recorded; see `tests.agents.record_streams`."""
