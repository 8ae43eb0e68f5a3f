"""Columns that fit, and text that cannot move the cursor."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.cli import output

WIDE = "漢字"


@pytest.fixture
def width(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int | None:
    wanted: int | None = getattr(request, "param", None)
    monkeypatch.setattr(output, "terminal_width", lambda: wanted)
    monkeypatch.setenv("NO_COLOR", "1")
    return wanted


def test_escape_sequences_are_shown_not_sent() -> None:
    assert output.clean("a\x1b[31mb\n\udcff\u202e") == "a\\x1b[31mb\\n\\udcff\\u202e"
    assert output.clean("plain ü 漢") == "plain ü 漢"


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=40))
def test_nothing_that_is_cleaned_moves_the_cursor(text: str) -> None:
    assert output.clean(text).isprintable()


def test_wide_letters_count_twice() -> None:
    assert output.width_of("ab") == 2
    assert output.width_of(WIDE) == 4
    assert output.width_of("e\u0301") == 1


@settings(deadline=None)
@given(st.text("ab漢ü", max_size=30), st.integers(0, 20))
def test_what_is_cut_fits(text: str, width: int) -> None:
    cut = output.cut(text, width)
    assert output.width_of(cut) <= width
    assert cut == text or output.width_of(text) > width


@pytest.mark.parametrize("width", [None], indirect=True)
def test_elsewhere_nothing_is_cut(width: int | None) -> None:
    text = output.table(("A", "B"), [("x" * 300, "y"), (WIDE, "z")], shrink=(0,))
    lines = text.splitlines()
    assert lines[0] == "A" + " " * 301 + "B"
    assert lines[1] == "x" * 300 + "  y"
    assert output.width_of(lines[2].rpartition("z")[0]) == 302


@pytest.mark.parametrize("width", [20, 40, 80], indirect=True)
def test_in_a_terminal_it_fits(width: int) -> None:
    rows = [("name-" * 5, "sp_aaaaaaaaaaaa", f"/home/{WIDE}/" + "x" * 90)]
    for line in output.table(("NAME", "ID", "PROJECT"), rows, shrink=(2, 0)).splitlines():
        assert output.width_of(line) <= width


@pytest.mark.parametrize("width", [40], indirect=True)
def test_the_column_that_may_shrink_does(width: int) -> None:
    row = ("sp_aaaaaaaaaaaa", "/home/ada/projects/and/so/on")
    [_, line] = output.table(("ID", "PROJECT"), [row], shrink=(1,)).splitlines()
    assert line.startswith("sp_aaaaaaaaaaaa  /home") and line.endswith("…")


def test_what_nobody_should_overlook_is_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: 80)
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = output.table(("R",), [("process !",), ("bubblewrap",)], marked=" !")
    assert "\x1b[1;31mprocess !\x1b[0m" in text and "\x1b" not in text.splitlines()[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in output.table(("R",), [("process !",)], marked=" !")


def test_what_steers_a_terminal_is_shown_however_it_is_cut() -> None:
    text = "a\x1b[1;32mb\x1b[0m\tü\x1b]8;;x\x07\r\n\x7f\rend\x1b"
    whole = output.Shown().text(text.encode(), last=True)
    assert whole == "a\x1b[1;32mb\x1b[0m\tü\\x1b]8;;x\\x07\r\n\\x7f\\rend\\x1b"
    data = text.encode()
    for size in range(1, len(data)):
        shown = output.Shown()
        pieces = [shown.text(data[at : at + size]) for at in range(0, len(data), size)]
        assert "".join(pieces) + shown.text(b"", last=True) == whole
