"""Every message of the hub is in the documentation, with an example that was really said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from carrel.app.hub import FAILED
from carrel.domain.events import EventType
from carrel.hub.connection import Connection
from carrel.hub.log import DROPPED
from carrel.hub.types import CUSTOM_PREFIXES, TYPES
from tests.daemon.hub_conversation import with_a_daemon, with_a_hub
from tests.daemon.hub_examples import Tape, read_page, section_of, write_page
from tests.daemon.rig import Daemon

FROM_THE_HUB = {"response", "error", "heartbeat", "client_disconnected", DROPPED, FAILED}
FROM_THE_HUB.add("instance_state")


def known() -> set[str]:
    """Every message that the code knows."""
    nobody = cast(Any, None)
    orders = set(Connection(nobody, nobody)._orders)
    custom = {f"{prefix}*" for prefix in CUSTOM_PREFIXES}
    # The feed alone says that a row cannot be read: it is no message itself.
    told = {str(type) for type in EventType if type is not EventType.UNREADABLE}
    return orders | set(TYPES) | custom | FROM_THE_HUB | told


def test_every_message_has_a_section() -> None:
    page = read_page()
    assert set(page) == known()
    assert [section for section, examples in page.items() if not examples] == []


async def test_the_examples_are_what_is_said(
    stopped: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text('desktop = false\nrequest_agent = "scripted"\n')
    monkeypatch.setenv("CARREL_CONFIG", str(settings))
    # As a daemon leaves it that was killed while it tried what works here.
    stopped.data.mkdir(mode=0o711)
    (stopped.data / "proof-1").mkdir()
    tape = Tape()
    await with_a_daemon(tape, stopped.start())
    await with_a_hub(tape, tmp_path)
    # CARREL_WRITE_DOCS=1 puts what was said into the page's blocks of JSON, and changes
    # nothing else in it.
    if os.environ.get("CARREL_WRITE_DOCS") == "1":
        write_page(tape.examples())
    said, page = tape.examples(), read_page()
    assert {section_of(type) for type in tape.heard} <= set(page)
    assert set(said) == set(page)
    for section, examples in said.items():
        assert page[section] == examples, section
