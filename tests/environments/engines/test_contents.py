"""One content has one key; whatever a build could see changes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.domain.engines import BuildNetwork, ImageBuild
from carrel.domain.environments import Feature
from carrel.domain.errors import EnvironmentRefused
from carrel.environments.engines.contents import build_key, check_mounts, check_networks
from carrel.environments.engines.staging import stage_project
from tests.sampling import examples

SOME = "FROM debian:12\nCOPY package*.json src /app/\nRUN true\n"
ALL = "FROM debian:12\nCOPY . /app\n"


def make(root: Path, dockerfile: str) -> Path:
    files = {"Dockerfile": dockerfile, "package.json": "{}", "package-lock.json": "{}"}
    for name, text in {**files, "src/a.py": "a", "README.md": "read me"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def changed(root: Path, dockerfile: str, change: Callable[[Path], object]) -> bool:
    make(root, dockerfile)
    before = build_key(ImageBuild(root))
    assert build_key(ImageBuild(root)) == before
    change(root)
    return build_key(ImageBuild(root)) != before


WRITES: dict[str, Callable[[Path], object]] = {
    "dockerfile": lambda root: (root / "Dockerfile").write_text(SOME + "RUN false\n"),
    "copied": lambda root: (root / "src/a.py").write_text("b"),
    "new": lambda root: (root / "src/b.py").write_text(""),
    "matching": lambda root: (root / "package-x.json").write_text(""),
    "mode": lambda root: (root / "src/a.py").chmod(0o755),
    "ignoring": lambda root: (root / ".dockerignore").write_text("x"),
    "gone": lambda root: (root / "package.json").unlink(),
    "link": lambda root: (root / "src/l").symlink_to("a.py"),
    "ignoring for one file": lambda root: (root / "Dockerfile.dockerignore").write_text("x"),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_copied_counts(tmp_path: Path, name: str) -> None:
    assert changed(tmp_path, SOME, WRITES[name])


def test_what_is_not_copied_does_not_count(tmp_path: Path) -> None:
    def touch(root: Path) -> None:
        (root / "README.md").write_text("more")
        os.utime(root / "src/a.py", (0, 0))

    assert not changed(tmp_path, SOME, touch)


WHOLE = [
    ALL,
    "FROM debian:12\nARG X=src\nCOPY $X /app\n",
    'FROM debian:12\nCOPY ["src", "/app"]\n',
    "FROM debian:12\nCOPY s[r]c /app\n",
    "FROM debian:12\nRUN --mount=type=bind,target=/x true\n",
    "FROM node:onbuild\n",
    "FROM debian:12\nONBUILD COPY . /\nRUN true\n",
    "FROM debian:12\nCOPY ../ /app\n",
    "FROM debian:12\nRUN <<EOF\nnever ends\n",
    "# syntax = elsewhere/language:1\nFROM debian:12\nRUN true\n",
]


@pytest.mark.parametrize("dockerfile", WHOLE)
def test_what_is_not_certain_is_the_whole_context(tmp_path: Path, dockerfile: str) -> None:
    assert changed(tmp_path, dockerfile, lambda root: (root / "README.md").write_text("more"))


def test_what_the_preprocessor_may_include_counts(tmp_path: Path) -> None:
    make(tmp_path, ALL)
    (tmp_path / "Dockerfile.in").write_text('FROM debian:12\n#include "README.md"\nRUN true\n')
    before = build_key(ImageBuild(tmp_path, "Dockerfile.in"))
    (tmp_path / "README.md").write_text("COPY src /app\n")
    assert build_key(ImageBuild(tmp_path, "Dockerfile.in")) != before


def test_the_usual_language_is_read(tmp_path: Path) -> None:
    dockerfile = f"# syntax=docker/dockerfile:1\n{SOME}"
    assert not changed(tmp_path, dockerfile, lambda root: (root / "README.md").write_text("more"))


def test_a_source_that_is_a_link_is_the_whole_context(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to("README.md")
    dockerfile = "FROM debian:12\nCOPY linked /\n"
    assert changed(tmp_path, dockerfile, lambda root: (root / "README.md").write_text("more"))


def test_arguments_and_stage_count(tmp_path: Path) -> None:
    make(tmp_path, SOME)
    keys = {
        build_key(ImageBuild(tmp_path)),
        build_key(ImageBuild(tmp_path, args={"A": "1"})),
        build_key(ImageBuild(tmp_path, args={"A": "2"})),
        build_key(ImageBuild(tmp_path, target="dev")),
        build_key(ImageBuild(tmp_path, context="src")),
    }
    assert len(keys) == 5


@pytest.mark.parametrize("name", ["none", "src", "out/Dockerfile", "../Dockerfile", "a\0b"])
def test_a_dockerfile_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    root = make(tmp_path / "project", SOME)
    (tmp_path / "Dockerfile").write_text(SOME)
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(EnvironmentRefused):
        build_key(ImageBuild(root, name))


def test_special_files_are_not_read(tmp_path: Path) -> None:
    make(tmp_path, ALL)
    os.mkfifo(tmp_path / "pipe")
    build_key(ImageBuild(tmp_path))


@pytest.mark.parametrize(
    ("network", "option", "refused"),
    [
        (BuildNetwork.ENGINE, "--network=host", True),
        (BuildNetwork.ENGINE, "--mount=type=tmpfs,target=/x --network='host'", True),
        (BuildNetwork.ENGINE, "--net\\\nwork=host", True),
        (BuildNetwork.ENGINE, "--network=default", False),
        (BuildNetwork.ENGINE, "echo --network=host", False),
        (BuildNetwork.NONE, "--network=default", True),
        (BuildNetwork.NONE, "--network=none", False),
        (BuildNetwork.HOST, "--network=host", False),
    ],
)
def test_a_step_has_no_wider_network_than_the_build(
    tmp_path: Path, network: BuildNetwork, option: str, refused: bool
) -> None:
    make(tmp_path, f"FROM debian:12\nRUN {option} true\n")
    with pytest.raises(EnvironmentRefused) if refused else contextlib.nullcontext():
        check_networks(ImageBuild(tmp_path, network=network))


PLAIN = [
    "--mount=type=bind,target=/x",
    "--mount=type=cache,target=/root/.cache,sharing=locked",
    "--mount=type=cache,target=/var/cache/apt --mount=type=cache,dst=/var/lib/apt,mode=0755",
    "--mount=type=tmpfs,destination=/t,size=1000 --mount=target=/x,ro",
]
OUT = [
    "--mount=type=bind,from=base,source=/rootdir,destination=/exploit,rw",
    "--mount=type=bind,source=out,target=/x",
    "--mount=source=out,target=/x",
    "--mount=type=bind,target=/x,bind-propagation=rshared",
    "--mount=type=cache,target=/x,id=../../../etc",
    "--mount=type=cache,target=/x,from=base",
    "--mount=type=cache,target=/x/../../etc",
    "--mount=type=cache,target=relative",
    "--mount=type=cache,target=$HOME",
    "--mount=type=cache,target=/x,target=/y",
    "--mount=type=cache,target=/a --mount=type=cache,target=/a/b",
    "--mount=type=cache,type=bind,target=/a",
    "--mount=type=secret,id=x",
    "--mount type=bind,from=base,target=/x",
    "--mount",
    "--mo\\\nunt=type=bind,from=base,target=/x",
    "--mo\\\n# in between\nunt=type=bind,from=base,target=/x",
    "--mo`\nunt=type=bind,from=base,target=/x",
    "--mo''unt=type=bind,from=base,target=/x",
    "--mo\\unt=type=bind,from=base,target=/x",
    '--mount=type=cache,target=/x,fr"om"=base',
]


@pytest.mark.parametrize("mounts", PLAIN)
def test_mounts_of_its_own_remain(tmp_path: Path, mounts: str) -> None:
    check_mounts(ImageBuild(make(tmp_path, f"FROM a\nRUN {mounts} true\n")), "podman 4.3")


@pytest.mark.parametrize("mounts", OUT)
@pytest.mark.parametrize("before", ["RUN ", "ONBUILD RUN ", "RUN --network=none "])
def test_no_mount_of_a_step_leads_out(tmp_path: Path, mounts: str, before: str) -> None:
    place = make(tmp_path, f"# escape=`\nFROM a\n{before}{mounts} true\n")
    with pytest.raises(EnvironmentRefused, match="leads out of the containers"):
        check_mounts(ImageBuild(place), "podman 4.3")


def test_nobody_can_tell_the_networks_behind_a_preprocessor(tmp_path: Path) -> None:
    make(tmp_path, SOME)
    (tmp_path / "Dockerfile.in").write_text(SOME)
    with pytest.raises(EnvironmentRefused, match="preprocessor"):
        check_networks(ImageBuild(tmp_path, "Dockerfile.in"))


IGNORED = {
    "plain": ("# not these\nout\nlogs/\n", True),
    "an exception": ("out\n!out/a\n", False),
    "a pattern": ("ou?\n", False),
    "nothing of it": ("other\n", False),
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_surely_ignored_does_not_count(tmp_path: Path, name: str) -> None:
    text, ignored = IGNORED[name]
    (tmp_path / ".dockerignore").write_text(text)

    def change(root: Path) -> None:
        (root / "out").mkdir()
        (root / "out/a").write_text("a")

    assert changed(tmp_path, ALL, change) is not ignored
    # Another file says it instead.
    for other in (".containerignore", "Dockerfile.dockerignore"):
        (tmp_path / other).write_text("")
        before = build_key(ImageBuild(tmp_path))
        (tmp_path / "out/a").write_text(other)
        assert build_key(ImageBuild(tmp_path)) != before
        (tmp_path / other).unlink()


def test_features_beside_an_ignored_file_count(tmp_path: Path) -> None:
    make(tmp_path, ALL)
    (tmp_path / ".dockerignore").write_text(".devcontainer\n")
    place = tmp_path / ".devcontainer/feat"
    place.mkdir(parents=True)
    asked = ImageBuild(
        tmp_path,
        features=(Feature("./feat"),),
        configuration=".devcontainer/devcontainer.json",
    )
    before = build_key(asked)
    (place / "install.sh").write_text("true")
    assert build_key(asked) != before


NAMES = st.sampled_from(["a", "b", "c/d", "c/e", "c/f/g", ".dockerignore", "é", "x y"])
KINDS = st.sampled_from(["file", "folder", "link", "broken", "pipe"])
MODES = st.sampled_from([0o644, 0o755, 0o4755, 0o600, 0o444, 0o2771])


@settings(max_examples=examples(40, exhaustive=2000), deadline=None)
@given(
    entries=st.dictionaries(NAMES, st.tuples(KINDS, MODES, st.text("ab!#\n/ ", max_size=6))),
    dockerfile=st.lists(
        st.sampled_from(
            ["FROM scratch\n", "COPY . /\n", "ADD a* c /x/\n", "COPY c/f ", "RUN ", "--mount=x ",
             "$A", "\\\n", "<<E\n", "E\n", "ONBUILD ", "[", '"a"', "*", "../..", "\x00"]
        ),
        max_size=12,
    ).map("".join),
)  # fmt: skip
def test_a_project_and_its_copy_have_one_key(
    tmp_path_factory: pytest.TempPathFactory,
    entries: dict[str, tuple[str, int, str]],
    dockerfile: str,
) -> None:
    """So an image is known without a copy; whatever is in the files, there is a key."""
    folder = tmp_path_factory.mktemp("context")
    root, copy = folder / "project", folder / "copy"
    root.mkdir()
    (root / "Dockerfile").write_text(dockerfile)
    for name, (kind, mode, text) in entries.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) or not path.parent.is_dir():
            continue
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "file":
            path.write_text(text)
        else:
            path.symlink_to("Dockerfile" if kind == "link" else "/nowhere")
        if kind in ("folder", "file"):
            path.chmod(mode | 0o100 if kind == "folder" else mode)
    stage_project(root, copy, lambda: None)
    assert build_key(ImageBuild(root)) == build_key(ImageBuild(copy))
