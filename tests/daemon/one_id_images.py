"""What an ordinary user is told without a range of ids; `test_ranges.py` has it run by one."""

from __future__ import annotations

from pathlib import Path

from tests.busybox import busybox_image
from tests.daemon.rig import fresh_daemon, good
from tests.daemon.test_images import make


def test_it_is_said_what_to_do(tmp_path: Path) -> None:
    with fresh_daemon() as own:
        client = own.local()
        space = make(client, busybox_image(tmp_path))
        (note,) = good(client.get(f"/v1/spaces/{space}"))["image"]["notes"]
        assert "sudo usermod --add-subuids" in note
        found = good(client.get("/v1/doctor"))["findings"]
        (finding,) = [one for one in found if (one["area"], one["name"]) == ("image", "ids")]
        assert finding["grade"] == "warning" and finding["remedy"].startswith("sudo usermod")
