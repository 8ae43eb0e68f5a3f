"""Our reading of git's settings is git's own, and what we do not touch stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.trees.git.config import is_true, last, parse, quote, without
from tests.trees.git.repositories import git

SAMPLES = [
    b"",
    b"# only a remark\n",
    b"[core]\n\tbare = false\n\tworktree = /a/b\n",
    b"[core] worktree = /same/line\n[CORE]\n\tWorkTree=/again ; remark\n",
    b'[core]\n\tworktree = "a b # c" # remark\n\tflag\n',
    b'[remote "o\\"ri\\\\gin"]\n\turl = x\\ty\\\\z\n',
    b"[core]\n\tworktree = one \\\n   two\n\tbare=true",
    b"\xef\xbb\xbf[core]\n\tbare = true\n",
    b'[a.b]\n\tc = d\n[include]\n\tpath = /x\n[url "u"]\n\tinsteadOf = "a;b"\n',
    b'[core]\n\n\n\tx-y = a  "b  c"  d  \r\n\tempty =\n',
]


@pytest.mark.parametrize("data", SAMPLES)
def test_values_are_as_git_reads_them(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config").write_bytes(data)
    listed = git(tmp_path, "config", "-z", "--list", "--no-includes", "--file=config")
    expected = {}
    for row in listed.split("\0")[:-1]:
        name, _, value = row.partition("\n")
        expected[name] = value if "\n" in row else "true"
    assert {item.name: item.value.decode() for item in parse(data) if item.name} == expected


@pytest.mark.parametrize("data", SAMPLES)
def test_what_is_left_out_is_gone_and_the_rest_stays(tmp_path: Path, data: bytes) -> None:
    plain = without(parse(data), "core.worktree".__eq__)
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_bytes(data)
    after.write_bytes(plain)
    rows = [
        git(tmp_path, "config", "-z", "--list", "--no-includes", f"--file={path}").split("\0")
        for path in (before, after)
    ]
    assert rows[1] == [row for row in rows[0] if not row.startswith("core.worktree\n")]


def test_there_is_an_end_to_what_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.trees.git.config.MAX_ITEMS", 3)
    data = b"[core]\n" + b"a\n" * 10 + b"worktree = x\n"
    items = parse(data)
    assert (len(items), b"".join(item.raw for item in items)) == (4, data)
    assert last(items, "core.worktree") is None


@given(st.binary(max_size=200) | st.text('[]core"\\\n=; #\tx', max_size=60).map(str.encode))
def test_nothing_is_ever_lost(data: bytes) -> None:
    assert b"".join(item.raw for item in parse(data)) == data


@given(st.binary(max_size=40).filter(lambda value: b"\0" not in value and b"\r" not in value))
def test_quoting(value: bytes) -> None:
    assert last(parse(b"[a]\nb = " + quote(value) + b"\n"), "a.b") == value


def test_truth() -> None:
    assert [is_true(value) for value in (b"true", b"Yes", b"1", b"0", b"", None)] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
