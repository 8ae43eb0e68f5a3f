"""The contract is whole: each row has its types, its errors and who answers it."""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from importlib import import_module
from typing import Any

import msgspec
import pytest

from carrel.api import types
from carrel.api.routes import BY_NAME, OPERATIONS, Operation
from carrel.api.types import agents, instances, requests, runs, spaces
from carrel.api.types.common import Body, Query
from carrel.api.types.hub import SYSTEM_REQUESTS
from carrel.client.http import operation
from carrel.interfaces.http.answers import STATUS
from carrel.interfaces.http.api import BY_HAND
from carrel.interfaces.http.operations import named
from carrel.interfaces.hub.system import SystemRequests
from carrel.service.operations import Operations
from tests.interfaces.http.test_scopes import ROUTES

GROUPS = typing.get_type_hints(Operations)


def test_nothing_is_there_twice() -> None:
    for what in ([row.name for row in OPERATIONS], [(row.method, row.path) for row in OPERATIONS]):
        assert [one for one, count in Counter(what).items() if count > 1] == []
    own = [
        name
        for module in (import_module(f"{types.__name__}.{one}") for one in types.MODULES)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    ]
    assert [name for name, count in Counter(own).items() if count > 1] == []


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_each_row(row: Operation) -> None:
    if row.body:
        # The older spelling lets be what it does not know.
        assert issubclass(types.find(row.body), Body) or row.group == "sessions"
        assert not row.takes
    if row.query:
        assert issubclass(types.find(row.query), Query)
    if row.media == "application/json":
        msgspec.inspect.type_info(types.find(row.answer))
    assert set(row.errors) <= set(STATUS)
    assert row.method == "GET" or not row.parts
    request = operation(row.name, *("word" for _ in named(row.path)))
    assert request.method == row.method and "{" not in request.where


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_each_is_answered(row: Operation) -> None:
    """By a method that takes the caller, what the path names, the query and the body."""
    if row.name in BY_HAND:
        return
    method = getattr(GROUPS[row.group], row.verb)
    _self, caller, *given = inspect.signature(method).parameters
    assert caller == "caller"
    hints = typing.get_type_hints(method)
    wanted = [str] * len(named(row.path))
    wanted += [types.find(name) for name in (row.query, row.body) if name]
    assert [hints[name] for name in given] == wanted
    assert hints["return"] is types.find(row.answer)


@pytest.mark.parametrize(
    ("options", "body", "otherwise", "more"),
    [
        (spaces.SpaceOptions, spaces.NewSpace, "project", "ref"),
        (runs.CommandOptions, runs.CommandBody, "argv", ""),
        (agents.TurnOptions, agents.NewTurn, "prompt terminal kits", ""),
        (instances.ServerOptions, instances.ServerBody, "command", ""),
        (instances.InstanceOptions, instances.NewInstance, "server project_path space_id", ""),
        (
            requests.RequestOptions,
            requests.NewRequest,
            "instructions project",
            "ref tier timeout_s",
        ),
    ],
)
def test_python_can_say_all_of_a_body(options: Any, body: Any, otherwise: str, more: str) -> None:
    """By keywords, but for what it says otherwise."""
    fields = {*body.__struct_fields__, *more.split()}
    assert set(options.__annotations__) == fields - {*otherwise.split()}


@pytest.mark.parametrize("name", SYSTEM_REQUESTS)
def test_each_request_on_the_hub_is_answered(name: str) -> None:
    """By the method of its name, which takes the client and the payload."""
    hints = typing.get_type_hints(getattr(SystemRequests, name))
    assert tuple(hints.values())[1:] == SYSTEM_REQUESTS[name]


def test_nothing_else_is_written_by_hand() -> None:
    assert set(BY_HAND) <= set(BY_NAME)


def test_who_may_call_what_is_tried() -> None:
    """By the test of scopes, which asks each of them with tokens that may not."""
    tried = {(route.method, route.path): route.expect for route in ROUTES}
    said = {(row.method, row.path.replace(":path", "")): row.who for row in OPERATIONS}
    assert tried == said
