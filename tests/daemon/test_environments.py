"""Spaces whose project says what runs in them first, when the daemon is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.busybox import busybox_image
from tests.daemon.rig import fresh_daemon, good

WAIT_S = 60.0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's trees are not seen from outside")
def test_a_daemon_that_is_killed_leaves_no_space_half_set_up(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    project.mkdir()
    script = "mkfifo gate; echo begun > begun; cat gate"
    content = {"image": "box:1", "postCreateCommand": script}
    (project / ".devcontainer.json").write_text(json.dumps(content))
    body = {"project": {"kind": "folder", "location": str(project)}, "image": "auto"}

    with fresh_daemon() as own:
        client = own.local()
        box = busybox_image(tmp_path)
        good(client.post("/v1/images", json={"name": "box:1", "path": str(box)}))

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                client.post("/v1/spaces", json=body, headers={"Idempotency-Key": "k"})

        asking = threading.Thread(target=ask)
        asking.start()
        deadline = time.monotonic() + WAIT_S
        while not list((own.data / "spaces").glob("*/project/begun")):
            assert time.monotonic() < deadline
        own.kill()
        asking.join()
        own.start()
        client = own.local()
        # It goes while others are served.
        while good(client.get("/v1/spaces"))["spaces"]:
            assert time.monotonic() < deadline
        assert list((own.data / "spaces").iterdir()) == []
        (project / ".devcontainer.json").write_text(json.dumps({"image": "box:1"}))
        headers = {"Idempotency-Key": "k"}
        made = good(client.post("/v1/spaces", json=body, headers=headers))
        assert made["image"]["name"] == ".devcontainer.json"
