"""Images over HTTP: from the daemon's machine step by step, uploaded, and by whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.daemon.rig import Daemon, bad, good
from tests.trees.images.layouts import file, folder, layer, link, oci, saved

CONTENT = saved(layer(folder("etc"), file("etc/passwd", b"root"), link("out", "/etc/shadow")))


@pytest.fixture
def client(daemon: Daemon) -> Iterator[httpx.Client]:
    with daemon.local() as found:
        yield found
        for image in good(found.get("/v1/images"))["images"]:
            good(found.delete(f"/v1/images/{image['id']}"))


def test_uploaded_shown_and_removed(client: httpx.Client, daemon: Daemon) -> None:
    pieces = iter([CONTENT[:1000], CONTENT[1000:]])
    response = client.put("/v1/images", params={"name": "site/tools:1"}, content=pieces)
    assert response.status_code == 201
    image = good(response)
    assert image["names"] == ["site/tools:1"]
    assert image["config"]["env"] == [["PATH", "/bin"], ["A", "b=c"]]
    assert Path(image["folder"], "etc/passwd").read_text() == "root"
    assert good(client.get("/v1/images/site/tools:1")) == image
    assert good(client.get("/v1/images/site%2Ftools:1")) == image
    with daemon.tcp(daemon.token("label:team=a")) as guest:
        seen = good(guest.get(f"/v1/images/{image['id']}"))
        assert seen["names"] == image["names"]
        assert not any((seen["folder"], seen["source"], seen["config"]["env"], seen["spaces"]))
        assert str(daemon.data) not in json.dumps(seen)
        for method, path in (("DELETE", "/v1/images/x"), ("POST", "/v1/images/prune")):
            bad(guest.request(method, path), 403, "forbidden")
        refused = guest.put("/v1/images", params={"name": "x"}, content=CONTENT)
        bad(refused, 403, "forbidden")
    good(client.delete("/v1/images/site/tools:1"))
    bad(client.get("/v1/images/site/tools:1"), 404, "image_not_found")


def test_a_path_is_told_step_by_step(client: httpx.Client, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(oci(layer(*(file(f"f{number}") for number in range(50)))))
    asked = {"name": "x", "path": str(archive)}
    told = client.post("/v1/images", json=asked, headers={"Accept": "text/event-stream"})
    kinds = [line.removeprefix("event: ") for line in told.text.splitlines() if "event: " in line]
    assert kinds[-1] == "image" and set(kinds[:-1]) == {"progress"}
    # Once more: it is there already.
    again = good(client.post("/v1/images", json=asked | {"name": "y"}))
    assert again["names"] == ["x", "y"]
    archive.write_bytes(b"nothing" * 1000)
    told = client.post("/v1/images", json=asked, headers={"Accept": "text/event-stream"})
    assert "event: problem" in told.text and "image_invalid" in told.text


@pytest.mark.parametrize("path", ["relative", "/nowhere", "/a\0b", "/dev/null", "/\ud800"])
def test_paths_that_cannot_be(client: httpx.Client, path: str) -> None:
    content = json.dumps({"name": "x", "path": path})
    headers = {"Content-Type": "application/json"}
    response = client.post("/v1/images", content=content, headers=headers)
    assert response.status_code == 422
    assert response.json()["code"] in ("image_invalid", "message_invalid")


def test_an_upload_that_breaks_off_leaves_nothing(client: httpx.Client, daemon: Daemon) -> None:
    sent = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield CONTENT[:1000]
        sent.set()
        raise RuntimeError("the client goes away")

    with pytest.raises(RuntimeError), daemon.local() as other:
        other.put("/v1/images", params={"name": "x"}, content=pieces())
    assert sent.is_set()
    # Whatever is left of it is in nobody's way.
    good(client.put("/v1/images", params={"name": "x"}, content=CONTENT))


def test_pruning(client: httpx.Client) -> None:
    # Others have left theirs in this daemon.
    good(client.post("/v1/images/prune", json={"budget_bytes": 0}))
    first = good(client.put("/v1/images", params={"name": "x"}, content=CONTENT))
    other = oci(layer(file("other")))
    second = good(client.put("/v1/images", params={"name": "x"}, content=other))
    gone = good(client.post("/v1/images/prune", json={"dry_run": True}))["images"]
    assert [image["id"] for image in gone] == [first["id"]]
    assert len(good(client.get("/v1/images"))["images"]) == 2
    good(client.post("/v1/images/prune"))
    assert [one["id"] for one in good(client.get("/v1/images"))["images"]] == [second["id"]]
    good(client.post("/v1/images/prune", json={"budget_bytes": 0}))
    assert good(client.get("/v1/images"))["images"] == []
