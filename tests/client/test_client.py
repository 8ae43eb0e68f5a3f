"""The sync client against a real daemon."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import carrel
from carrel import Client, CommandFailed, Limits, Retention, errors
from carrel.api.types.spaces import SpaceOptions
from carrel.client import Space, models
from carrel.domain.spaces import SpaceState
from carrel.domain.trees import ChangeKind, EntryType
from tests.daemon.rig import Daemon

ODD = os.fsdecode(b"odd\xff name")
GONE_S = 60.0


class TestSpaces:
    def test_it_is_there_while_the_context_is_open(self, client: Client, project: Path) -> None:
        steps: list[models.Progress] = []
        with client.space(project, on_progress=steps.append) as space:
            assert space.info.state is SpaceState.READY
            assert space.info.project.location == str(project)
            assert space.run(["cat", "README.md"]).stdout == "read me\n"
            space.files.write("new", "changed")
        with pytest.raises(errors.SpaceNotFound):
            space.run(["true"])
        assert steps and all(step.stage for step in steps)
        assert not (project / "new").exists()

    def test_it_is_gone_after_an_error_too(self, client: Client) -> None:
        with pytest.raises(ZeroDivisionError), client.space() as space:
            raise ZeroDivisionError
        assert client.get(space.id).info.state is SpaceState.REMOVED

    def test_one_who_removed_it_meets_no_error(self, client: Client) -> None:
        with client.space() as space:
            space.remove()

    def test_it_can_be_kept(self, client: Client) -> None:
        with client.space(keep=True) as space:
            pass
        assert space.refresh().state is SpaceState.READY
        space.remove(force=True)

    def test_options_arrive(self, client: Client, project: Path) -> None:
        options = SpaceOptions(
            name="client-options",
            exclude=["sub"],
            network="open",
            tier="minimal",
            limits=Limits(pids=100),
            labels={"team": "blue"},
            env={"CI": "1"},
            retention=Retention(ttl_s=3600, discard=True),
        )
        with client.space(project, **options) as space:
            info = space.info
            assert (info.name, info.network, info.tier) == ("client-options", "open", "minimal")
            assert (info.limits.pids, info.limits.cpus) == (100, 0.5)
            assert info.labels == {"team": "blue"} and info.retention.ttl_s == 3600
            assert space.run(["sh", "-c", "echo $CI; ls"]).stdout == "1\nREADME.md\n"
            assert client.get("client-options").id == space.id
            assert client.get(space.id[:12]).id == space.id
            found = list(client.spaces(labels={"team": "blue"}))
            assert [one.id for one in found] == [space.id]

    def test_a_base_is_made_ahead(self, client: Client, project: Path) -> None:
        base = client.make_base(project, exclude=["sub"])
        assert base.id in [one.id for one in client.bases()]
        with client.space(base=base.id) as space:
            assert [one.name for one in space.files.list()] == ["README.md"]

    def test_all_pages_are_listed(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("carrel.client.sync.PAGE", 1)
        made = [client.create(labels={"page": "yes"}) for _ in range(3)]
        try:
            found = [space.id for space in client.spaces(labels={"page": "yes"})]
            assert found == [space.id for space in reversed(made)]
        finally:
            for space in made:
                space.remove()
        gone = [space.id for space in client.spaces(states=["removed"], labels={"page": "yes"})]
        assert sorted(gone) == sorted(space.id for space in made)

    def test_stopping_starting_changing(self, client: Client, space: Space) -> None:
        assert space.stop(grace_s=0).state is SpaceState.STOPPED
        with pytest.raises(errors.StateConflict) as caught:
            space.run(["true"])
        assert caught.value.details["state"] == "stopped"
        assert space.start().state is SpaceState.READY
        space.update(labels={"a": "b"}, retention=Retention(idle_s=60))
        assert space.info.labels == {"a": "b"} and space.info.retention.idle_s == 60

    def test_a_slow_reader_of_a_difference(
        self, client: Client, daemon: Daemon, project: Path
    ) -> None:
        """The daemon waits for it, and keeps nothing when it goes."""
        work = daemon.data / "review"
        with client.space(project) as space:
            space.run(["sh", "-c", "for n in $(seq 100); do seq 20000 > f$n; done"], check=True)
            pieces = space.diff()
            assert next(pieces).startswith(b"diff --git a/f1 b/f1\n")
            assert len(list(work.iterdir())) == 1
            pieces.close()
            until = time.monotonic() + GONE_S
            while list(work.iterdir()):
                assert time.monotonic() < until
                time.sleep(0.01)
            assert space.diff_files(limit=1).added == 100 * 20_000

    def test_what_was_changed_is_not_lost(self, client: Client, project: Path) -> None:
        space = client.create(project)
        space.files.write("README.md", "mine\n")
        assert [(one.kind, one.path) for one in space.changes()] == [
            (ChangeKind.MODIFIED, "README.md")
        ]
        assert b"-read me\n+mine\n" in b"".join(space.diff("README.md"))
        assert space.diff_files(to=space.id).total == 0
        with pytest.raises(errors.PathNotFound):
            next(space.diff("no-such"))
        with pytest.raises(errors.UnexportedChanges) as caught:
            space.remove()
        assert caught.value.details["changes"] == 1
        removal = space.remove(force=True)
        assert removal.kept is not None and removal.kept.changes == 1
        assert space.id in [one.space.id for one in client.trash()]
        back = client.undelete(space.id)
        assert back.files.read("README.md") == b"mine\n"
        assert back.info.restored_from == space.id
        back.remove(force=True)

    def test_what_it_uses_and_whether_it_holds(self, client: Client, space: Space) -> None:
        space.files.write("large", bytes(100_000))
        assert (space.usage().disk_bytes or 0) >= 100_000
        assert space.id in [one.space for one in client.usage()]
        proof = space.verify()
        assert proof.holds and proof.attempts and proof.space == space.id


class TestErrors:
    def test_they_are_the_same_as_in_process(self, client: Client) -> None:
        with pytest.raises(carrel.errors.SpaceNotFound, match="There is no space 'nobody'"):
            client.get("nobody")
        with pytest.raises(errors.ProjectNotFound):
            client.create("/nonexistent/project")
        with pytest.raises(errors.RunNotFound):
            client.run("ru_aaaaaaaaaaaa")
        with pytest.raises(errors.MessageInvalid):
            client.create(name="Not A Name")

    def test_a_name_is_taken_once(self, client: Client) -> None:
        with client.space(name="taken"), pytest.raises(errors.NameTaken):
            client.create(name="taken")

    def test_words_stay_words(self, client: Client) -> None:
        for word in ("../spaces", "..", "a/b", "?", "#", "%2e", "ä", "x" * 300):
            with pytest.raises(errors.CarrelError):
                client.get(word)

    def test_without_a_daemon(self, tmp_path: Path) -> None:
        with pytest.raises(errors.DaemonUnavailable, match="No daemon runs"):
            Client(data=tmp_path, autostart=False).info()


class TestFiles:
    def test_bytes_are_bytes(self, space: Space) -> None:
        files = space.files
        assert files.read("sub/data") == bytes(range(256))
        assert files.read("sub/data", start=10, end=20) == bytes(range(10, 20))
        assert files.read("sub/data", start=250) == bytes(range(250, 256))
        files.write("sub/data", iter([b"a", b"b" * 300_000]), mode=0o600)
        assert files.stat("sub/data").size == 300_001
        assert files.stat("sub/data").mode == "600"
        with pytest.raises(errors.PathNotFound):
            files.read("nothing")
        with pytest.raises(errors.PathError):
            files.read("../../etc/passwd")

    def test_names_are_names(self, space: Space) -> None:
        files = space.files
        for name in (ODD, "a b&c=d", "ü%41", "+", "new\nline"):
            files.write(name, name.encode("utf-8", "surrogateescape"))
            assert files.read(name) == os.fsencode(name)
        assert {ODD, "new\nline"} <= {one.name for one in files.list()}

    def test_folders(self, space: Space) -> None:
        files = space.files
        files.mkdir("a/b/c", parents=True)
        files.move("README.md", "a/b/c/moved")
        assert [(one.name, one.type) for one in files.list("a/b/c")] == [("moved", EntryType.FILE)]
        with pytest.raises(errors.PathError):
            files.delete("a")
        files.delete("a", recursive=True)
        assert [one.name for one in files.list()] == ["sub"]

    def test_out_and_in(self, space: Space, tmp_path: Path) -> None:
        files = space.files
        files.download(".", tmp_path / "all")
        assert (tmp_path / "all" / "sub" / "data").read_bytes() == bytes(range(256))
        files.download("sub", tmp_path / "renamed")
        assert (tmp_path / "renamed" / "data").is_file()
        moved = files.download("sub", tmp_path / "all")
        assert moved.target == str(tmp_path / "all" / "sub")
        files.download("README.md", tmp_path / "file")
        assert (tmp_path / "file").read_text() == "read me\n"
        assert files.download("README.md", tmp_path).target == str(tmp_path / "README.md")

        (tmp_path / "all" / "evil").symlink_to("/etc/passwd")
        (tmp_path / "all" / "run").write_text("#!/bin/sh\necho run\n")
        (tmp_path / "all" / "run").chmod(0o755)
        moved = files.upload(tmp_path / "all")
        assert [os.path.basename(path) for path, _ in moved.skipped] == ["evil"]
        assert space.run(["./all/run"]).stdout == "run\n"
        files.upload(tmp_path / "all", "other")
        files.upload(tmp_path / "all" / "run", "other/again")
        files.upload(f"{tmp_path}/all/.", "sub")
        assert {one.name for one in files.list("sub")} >= {"data", "run", "sub"}
        assert files.stat("other/again").mode == "755"
        with pytest.raises(errors.PathError):
            files.upload(tmp_path / "all", "no/such/place")
        with pytest.raises(FileNotFoundError):
            files.upload(tmp_path / "missing")

    def test_a_space_cannot_write_outside_of_what_is_asked_for(
        self, space: Space, tmp_path: Path
    ) -> None:
        script = "mkdir d; ln -s /etc d/etc; ln -s ../../x d/up; ln -s data d/ok; echo 1 > d/f"
        space.run(["sh", "-c", script], check=True)
        moved = space.files.download("d", tmp_path / "d")
        assert sorted(os.listdir(tmp_path / "d")) == ["f", "ok"]
        assert sorted(path for path, _ in moved.skipped) == ["d/etc", "d/up"]

    def test_a_broken_download_leaves_the_old_file(self, space: Space, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("old")
        with pytest.raises(errors.PathNotFound):
            space.files.download("nothing", tmp_path / "file")
        assert (tmp_path / "file").read_text() == "old"
        assert sorted(os.listdir(tmp_path)) == ["file", "project"]


class TestDaemon:
    def test_what_it_says_of_itself(self, client: Client, daemon: Daemon) -> None:
        info = client.info()
        assert info.version == carrel.__version__ and info.pid == daemon.pid
        assert info.scope == "admin" and info.data == str(daemon.data)
        assert info.tiers["minimal"].cpus == 0.5
        assert any(part.kind == "records" for part in client.df().parts)
        diagnosis = client.doctor()
        assert {finding.area for finding in diagnosis.findings} >= {"machine", "runtime"}
        report = client.gc(dry_run=True)
        assert report.dry_run

    def test_tokens_open_what_they_say(self, client: Client, daemon: Daemon) -> None:
        url = f"http://{daemon.address}"
        with client.space(labels={"team": "red"}) as mine, client.space() as other:
            token = client.tokens.create("label:team=red", name="red", ttl_s=600)
            with Client(url=url, token=token.secret) as limited:
                assert [space.id for space in limited.spaces()] == [mine.id]
                assert limited.get(mine.id).run(["echo", "hi"]).stdout == "hi\n"
                assert limited.info().pid is None
                for attempt in (
                    lambda: limited.get(other.id),
                    lambda: limited.tokens.list(),
                    lambda: limited.gc(),
                ):
                    with pytest.raises((errors.SpaceNotFound, errors.Forbidden)):
                        attempt()
                listed = {one.id: one for one in client.tokens.list()}
                assert listed[token.id].scope == "label:team=red"
                client.tokens.revoke(token.id)
                with pytest.raises(errors.AuthenticationFailed):
                    limited.info()
        with Client(url=url) as nobody, pytest.raises(errors.AuthenticationFailed):
            nobody.info()

    def test_it_is_started_on_demand(self, own_daemon: Daemon) -> None:
        own_daemon.stop()
        with Client(data=own_daemon.data) as client:
            assert client.info().data == str(own_daemon.data)
        with Client(socket=own_daemon.socket) as client:
            assert client.info().data == str(own_daemon.data)

    def test_threads_share_a_client(self, client: Client, space: Space) -> None:
        found: list[str] = []

        def ask(number: int) -> None:
            result = space.run(["echo", str(number)])
            found.append(result.stdout.strip() + client.get(space.id).name)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(found) == sorted(f"{number}{space.name}" for number in range(8))

    def test_connections_are_closed(self, daemon: Daemon) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with Client(data=daemon.data) as client, client.space() as space:
            space.run(["true"])
            with space.start_run(["sleep", "60"]).attach():
                pass
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_newer_daemon_may_say_more(self) -> None:
        content = {"space": "sp", "changes": 0, "kept": None, "lost": "", "of_tomorrow": [1]}
        assert models.decode(content, models.Removal).space == "sp"
        with pytest.raises(errors.DaemonUnavailable, match="cannot be read"):
            models.decode({"space": 5}, models.Removal)


def test_the_names_are_there() -> None:
    assert {"Client", "AsyncClient", "errors", "Limits", "Retention"} <= set(dir(carrel))
    assert carrel.errors is errors and isinstance(carrel.Client(), Client)
    assert issubclass(CommandFailed, errors.CarrelError)
    with pytest.raises(AttributeError):
        carrel.nothing  # noqa: B018
