"""What agents of requests are told, and what of their answer is understood."""

from __future__ import annotations

import pytest

from carrel.domain.requests import Generate
from carrel.service.requests.work import MISSING, MOST_MISSING, missing_in, prompt_of


def test_instructions_alone_are_the_prompt() -> None:
    assert prompt_of(Generate("make it")) == "make it"


def test_architecture_and_context_come_after_them() -> None:
    prompt = prompt_of(Generate("make it", architecture="three layers", context="Python 3.11"))
    assert prompt.startswith("make it\n")
    assert prompt.index("three layers") < prompt.index("Python 3.11")


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ("done", ()),
        ("", ()),
        (f"I say {MISSING} in the middle of a line", ()),
        (f"{MISSING} the schema", ("the schema",)),
        (f"made half\n{MISSING}\n- the schema\n* which port\n\n", ("the schema", "which port")),
        (f"{MISSING}\n", ()),
        (f"{MISSING}\nold\n\nbut then\n{MISSING}\nnew", ("new",)),
    ],
)
def test_what_is_missing(said: str, missing: tuple[str, ...]) -> None:
    assert missing_in(said) == missing


def test_what_is_missing_is_bounded() -> None:
    found = missing_in(MISSING + "\n" + "\n".join("x" * 5000 for _ in range(500)))
    assert len(found) == MOST_MISSING
    assert max(map(len, found)) <= 1000
