"""Taking files from space to space, from the command line and from Python."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import carrel as library
from tests.cli.program import Program

pytestmark = pytest.mark.usefixtures("tidy")


def test_take_and_undo(carrel: Program, project: Path) -> None:
    one = carrel.good("new", str(project), "--name", "one").strip()
    carrel.good("new", str(project), "--name", "two")
    carrel.good("exec", one, "--", "sh", "-c", "mkdir d; echo idea > d/idea.txt; echo x > other")
    assert carrel("take", one, "d").code == 2, "no --into"
    assert carrel("take", one, "none", "--into", "two").code == 3
    assert carrel("take", one, "d", "--into", "nobody").code == 3
    done = carrel("take", one, "d", "--into", "two")
    assert (done.code, done.out) == (0, "A d/idea.txt\n") and "Taken into two" in done.err
    assert carrel.good("exec", "two", "--", "cat", "d/idea.txt") == "idea\n"
    refused = carrel("take", one, "d", "--into", "two")
    assert refused.code == 4 and "has all of this" in refused.err
    assert "take" in carrel.good("undo", "--list")
    undone = carrel("undo")
    assert undone.code == 0 and "two has its own 1 files again" in undone.err
    assert carrel.good("exec", "two", "--", "ls", "-A") == carrel.good(
        "exec", carrel.good("new", str(project)).strip(), "--", "ls", "-A"
    )
    with library.Client(data=carrel.data) as client:
        taken = client.get("one").take("other", into="two")
        assert [file.path for file in taken.listed] == ["other"]
        assert client.landings()[0].kind == "take"
        assert client.undo().id == taken.id
        # One that cannot be taken back any more is not in the way of others.
        older = client.get("one").take("other", into="two")
        with client.space(str(project)) as gone:
            client.get("one").take("other", into=gone.name)
            gone.remove(force=True)
        assert client.undo().kind == "removal"
        assert client.undo().id == older.id
    listed = json.loads(carrel.good("undo", "--list", "--json"))["landings"]
    states = [each["state"] for each in listed if (each["kind"], each["name"]) == ("take", "two")]
    assert states == ["undone"] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="each space has a user as root only")
def test_see(carrel: Program, project: Path) -> None:
    other = carrel.good("new", str(project)).strip()
    assert carrel("new", str(project), "--see", "nobody").code == 3
    name = carrel.good("new", str(project), "--see", other).strip()
    carrel.good("exec", other, "--", "sh", "-c", "echo live > live.txt")
    assert carrel.good("exec", name, "--", "cat", f"/see/{other}/live.txt") == "live\n"
    assert f"/see/{other}" in carrel.good("show", name)
    with library.Client(data=carrel.data) as client:
        assert list(client.get(name).info.sees) == [f"/see/{other}"]
        with client.space(str(project), see=[other]) as space:
            assert space.run(["cat", f"/see/{other}/live.txt"]).stdout == "live\n"
