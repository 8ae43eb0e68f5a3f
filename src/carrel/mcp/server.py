"""The server: which tools there are, and errors by code.

Who speaks is settled by the connection to the hub before any tool is offered: inside a space
it is that space, and no argument says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from anyio import AsyncFile
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from carrel import __version__
from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.mcp.desk import Desk, ToolContext
from carrel.mcp.editor import EditorTools
from carrel.mcp.people import PeopleTools
from carrel.mcp.results import Problem
from carrel.mcp.spaces import FamilyTools, ManagingTools

NAME = "carrel"
INSIDE = """You work in a space of Carrel: a private copy of a project, in a sandbox. Tell how it
goes with log_progress, ask the user with ask_user, and have parts of the work done in spaces of
their own with spawn_space, message_space and wait_for_space."""
OUTSIDE = """Carrel makes spaces: private copies of a project, each in a sandbox. These tools make,
find, watch and delete them."""
READING = {"space_state", "list_spaces", "wait_for_space", "read_messages", "get_selection"}
DELETING = {"delete_space"}
_log = logging.getLogger(__name__)


class CarrelServer(MCPServer[Any]):
    """Tools raise `CarrelError`; clients get its code, message and hint."""

    def __init__(self, desk: Desk) -> None:
        self._offered = {tool.name: tool for tool in map(_tool, _functions(desk))}
        super().__init__(
            NAME,
            version=__version__,
            instructions=INSIDE if desk.inside else OUTSIDE,
            tools=list(self._offered.values()),
            # Its tools are always the same: nobody has to listen for changes.
            subscriptions=False,
            log_level="WARNING",
        )

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: ToolContext | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            self._check(name, arguments)
            return await super().call_tool(name, arguments, context)
        except CarrelError as error:
            return _failed(error)
        except ToolError as error:
            return _failed(_told(name, error))

    async def serve_lines(self, stdin: AsyncFile[str], stdout: AsyncFile[str]) -> None:
        """As `run_stdio_async`, with other ends than the standard ones."""
        server = self._lowlevel_server
        async with stdio_server(stdin, stdout) as (heard, said):
            await server.run(heard, said, server.create_initialization_options())

    def _check(self, name: str, arguments: dict[str, Any]) -> None:
        tool = self._offered.get(name)
        if tool is None:
            raise MessageInvalid(f"There is no tool {name[:80]!r} here.", hint="List the tools.")
        unknown = sorted(set(arguments) - set(tool.parameters["properties"]))
        if unknown:
            raise MessageInvalid(
                f"{name} has no argument {unknown[0][:80]!r}.", hint="Look at its schema."
            )


def _functions(desk: Desk) -> list[Callable[..., Any]]:
    if not desk.inside:
        return _of_spaces(ManagingTools(desk))
    people, editor = PeopleTools(desk), EditorTools(desk)
    return [
        people.log_progress,
        people.signal_user,
        people.ask_user,
        people.present_walkthrough,
        people.read_messages,
        *_of_spaces(FamilyTools(desk)),
        editor.get_selection,
        editor.ide_operation,
    ]


def _of_spaces(tools: FamilyTools | ManagingTools) -> list[Callable[..., Any]]:
    return [
        tools.space_state,
        tools.update_space,
        tools.list_spaces,
        tools.spawn_space,
        tools.wait_for_space,
        tools.message_space,
        tools.delete_space,
    ]


def _tool(function: Callable[..., Any]) -> Tool:
    name = function.__name__
    tool = Tool.from_function(
        function,
        description=" ".join(cleandoc(function.__doc__ or "").split()),
        annotations=ToolAnnotations(
            read_only_hint=name in READING,
            destructive_hint=name in DELETING,
            open_world_hint=False,
        ),
    )
    tool.parameters["additionalProperties"] = False
    return tool


def _told(name: str, error: ToolError) -> CarrelError:
    """The error behind what the SDK made of it."""
    cause = error.__cause__
    if isinstance(cause, CarrelError):
        return cause
    if isinstance(cause, ValidationError) and not isinstance(error, UnexpectedToolError):
        first = cause.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return MessageInvalid(f"{name}: {where}: {first['msg']}.", hint="Look at its schema.")
    _log.error("%s failed", name, exc_info=cause or error)
    return CarrelError("Something went wrong in this server.", hint="Its log says what.")


def _failed(error: CarrelError) -> CallToolResult:
    problem = Problem(code=error.code, message=error.message, hint=error.hint)
    return CallToolResult(
        content=[TextContent(type="text", text=problem.model_dump_json())],
        structured_content=problem.model_dump(),
        is_error=True,
    )
