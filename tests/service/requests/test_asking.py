"""What may be asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import Forbidden, RequestInvalid
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.requests import Check, Generate, Keeping, Policy, Webhook
from carrel.service.requests.book import RequestRules
from carrel.service.requests.intake import MAX_INSTRUCTIONS, check, digest

RULES = RequestRules(webhook_hosts=("ci.example",))
TOKEN = Caller("tk_one", Scope(ScopeKind.LABEL, "team=blue"))
VERSIONED = Keeping(Policy.VERSIONED, series="api")


@pytest.mark.parametrize(
    "more",
    [
        {"instructions": ""},
        {"instructions": " \n"},
        {"instructions": "a\0b"},
        {"instructions": "\ud800"},
        {"instructions": "x" * (MAX_INSTRUCTIONS + 1)},
        {"tool": "blacksmith"},
        {"request_id": "with space"},
        {"request_id": "rq_mine"},
        {"request_id": "x" * 129},
        {"owner": "x" * 257},
        {"owner": "a\nb"},
        {"architecture": "x" * 600_000},
        {"context_files": {f"n{number}": "" for number in range(101)}},
        {"context": "\0"},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"check": Check(())},
        {"check": Check(("a\0",))},
        {"check": Check(("true",), timeout_s=-1)},
        {"keeping": Keeping(Policy.RETAIN, seconds=0)},
        {"keeping": Keeping(Policy.RETAIN, seconds=float("inf"))},
        {"keeping": Keeping(hold_s=-1)},
        {"keeping": Keeping(hold_s=float("nan"))},
        {"keeping": Keeping(Policy.VERSIONED)},
        {"keeping": Keeping(Policy.VERSIONED, series="../up")},
        {"keeping": Keeping(series="api")},
        {"keeping": dataclasses.replace(VERSIONED, newest=0)},
        {"webhook": Webhook("ftp://host/x")},
        {"webhook": Webhook("http://")},
        {"webhook": Webhook("http://host:99999/")},
        {"webhook": Webhook("file:///etc/passwd")},
        {"workspace_path": "/x", "project": Project(ProjectKind.EMPTY)},
        {"workspace_path": "/x", "keeping": Keeping(Policy.RETAIN)},
    ],
)
def test_what_cannot_be(more: dict[str, Any]) -> None:
    asked = Generate(**{"instructions": "make it", **more})
    with pytest.raises(RequestInvalid) as caught:
        check(LOCAL, asked, RULES)
    assert caught.value.hint


@pytest.mark.parametrize(
    "more",
    [
        {"keeping": VERSIONED},
        {"keeping": Keeping(Policy.RETAIN, seconds=60)},
        {"request_id": "job:42.a_b-c"},
        {"webhook": Webhook("http://127.0.0.1:8000/hook")},
        {"workspace_path": "/srv/project"},
        {"instructions": "x" * MAX_INSTRUCTIONS},
    ],
)
def test_what_can(more: dict[str, Any]) -> None:
    check(LOCAL, Generate(**{"instructions": "make it", **more}), RULES)


def test_a_token_sends_results_only_where_it_may() -> None:
    check(TOKEN, Generate("make it", webhook=Webhook("https://ci.example/hook")), RULES)
    with pytest.raises(Forbidden):
        check(TOKEN, Generate("make it", webhook=Webhook("http://169.254.169.254/")), RULES)


def test_a_token_names_no_folder() -> None:
    with pytest.raises(Forbidden):
        check(TOKEN, Generate("make it", workspace_path="/srv/project"), RULES)


def test_the_same_again_is_the_same() -> None:
    one = Generate("make it", request_id="a", env={"A": "1", "B": "2"})
    other = Generate("make it", request_id="b", tied=True, env={"B": "2", "A": "1"})
    assert digest(one) == digest(other)
    assert digest(one) != digest(dataclasses.replace(one, model="large"))
