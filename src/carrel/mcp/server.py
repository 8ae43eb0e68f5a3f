"""The server: which tools there are, and errors by code.

Who speaks is settled by the connection to the hub before any tool is offered: inside a space
it is that space, and no argument says otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, get_type_hints

import msgspec
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent, Tool, ToolAnnotations

from carrel import __version__
from carrel.api import wire
from carrel.client.aio_hub import AsyncHub
from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.mcp.address import Http
from carrel.mcp.hub import OpenHub, ToolContext, ToolHub, open_tool_hub
from carrel.mcp.tools import EditorTools, FamilyTools, ManagingTools, PeopleTools

NAME = "carrel"
INSIDE = """You work in a space of Carrel: a private copy of a project, in a sandbox. Tell how it
goes with log_progress, ask the user with ask_user, ask for a look at what you made with
request_review, keep the state of your files with checkpoint, and have parts of the work done in
spaces of their own with spawn_space, message_space and wait_for_space. In /see, if it is there, are
files of other spaces as they are now, which the user lets you read."""
OUTSIDE = """Carrel makes spaces: private copies of a project, each in a sandbox. These tools make,
find, watch and delete them."""
READING = {"space_state", "list_spaces", "wait_for_space", "read_messages", "get_selection"}
DELETING = {"delete_space"}
_log = logging.getLogger(__name__)


class CarrelServer(MCPServer[Any]):
    """Tools raise `CarrelError`; clients get its code, message and hint."""

    def __init__(self, hub: ToolHub) -> None:
        self._offered = {one.name: one for one in _tools(hub)}
        super().__init__(
            NAME,
            version=__version__,
            instructions=INSIDE if hub.inside else OUTSIDE,
            # Its tools are always the same: nobody has to listen for changes.
            subscriptions=False,
            log_level="WARNING",
            middleware=[KnownTools()],
        )

    async def list_tools(self) -> list[Tool]:
        return [one.listed for one in self._offered.values()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: ToolContext | None = None
    ) -> CallToolResult:
        try:
            tool = self._offered.get(name)
            if tool is None:
                what = f"There is no tool {name[:80]!r} here."
                raise MessageInvalid(what, hint="List the tools.")
            text = msgspec.json.encode(await tool.call(arguments, context))
        except CarrelError as error:
            return _failed(error)
        except Exception:
            _log.exception("%s failed", name)
            what = "Something went wrong in this server."
            return _failed(CarrelError(what, hint="Try again, or report it."))
        return _result(msgspec.json.format(text, indent=2))

    async def serve(self, heard: Any, said: Any) -> None:
        """One client, by streams of the SDK's messages."""
        server = self._lowlevel_server
        await server.run(heard, said, server.create_initialization_options())


class KnownTools:
    """Implements `ServerMiddleware`. The tools are always the same: what was listed once, in one
    version of the protocol, is not looked through and shaped again for each client."""

    def __init__(self) -> None:
        self._listed: dict[str, HandlerResult] = {}

    async def __call__(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        version = ctx.protocol_version
        # Parameters, and what is said before `initialize`, are for the SDK to judge.
        plain = ctx.method == "tools/list" and not ctx.params
        if not plain or ctx.session.client_params is None:
            return await call_next(ctx)
        if version not in self._listed:
            self._listed[version] = await call_next(ctx)
        return self._listed[version]


def _tools(hub: ToolHub) -> list[OfferedTool]:
    inside = [PeopleTools(hub), FamilyTools(hub), EditorTools(hub)]
    return [
        OfferedTool(getattr(tools, name))
        for tools in (inside if hub.inside else [ManagingTools(hub)])
        for kind in type(tools).__mro__
        for name in vars(kind)
        if not name.startswith("_")
    ]


class OfferedTool:
    """A tool as clients see it, by what its method says of itself."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        hints = get_type_hints(method)
        self._asked = hints["asked"]
        self._with_context = "ctx" in hints
        self.name = method.__name__
        self.listed = Tool(
            name=self.name,
            description=" ".join(cleandoc(method.__doc__ or "").split()),
            input_schema=_schema(self._asked),
            output_schema=_schema(hints["return"]),
            annotations=ToolAnnotations(
                read_only_hint=self.name in READING,
                destructive_hint=self.name in DELETING,
                open_world_hint=False,
            ),
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext | None) -> Any:
        """Raises `MessageInvalid` when these are no arguments for it."""
        fields = self.listed.input_schema["properties"]
        given = {name: _parsed(one, fields.get(name, {})) for name, one in arguments.items()}
        try:
            asked = wire.from_plain(given, self._asked, "", strict=False)
        except MessageInvalid as error:
            what = f"{self.name}: {error.message}"
            raise MessageInvalid(what, hint="Look at its schema.") from None
        return await (self._method(asked, context) if self._with_context else self._method(asked))


def _schema(kind: type) -> dict[str, Any]:
    """With the members of the type at the top: clients want an object there, no reference."""
    _, defined = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    found = defined.pop(kind.__name__)
    return {**found, "$defs": defined} if defined else found


def _parsed(given: Any, schema: dict[str, Any]) -> Any:
    """Some clients say a list or an object as a text that has it as JSON."""
    if not isinstance(given, str) or schema.get("type", "array") != "array" or "anyOf" in schema:
        return given
    try:
        found = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError):
        return given
    return found if isinstance(found, list | dict) else given


def _result(text: bytes, *, is_error: bool = False) -> CallToolResult:
    """The same twice: as a text, and for programs."""
    return CallToolResult(
        content=[TextContent(type="text", text=text.decode())],
        structured_content=msgspec.json.decode(text),
        is_error=is_error,
    )


def _failed(error: CarrelError) -> CallToolResult:
    problem = {"code": error.code, "message": error.message, "hint": error.hint}
    return _result(msgspec.json.encode(problem), is_error=True)


# A server in this process, for one client: on standard input and output, or over HTTP.
#
# Most clients are served by `sessions` instead, where the SDK is loaded already.


def serve(
    *,
    data: str = "",
    url: str = "",
    autostart: bool = True,
    inside: bool = False,
    http: Http | None = None,
) -> None:
    """Until the client is gone, or somebody ends it. `inside`: it is known that it speaks for a
    space, and the hub is waited for. Else raises what the hub refuses for."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    open_hub = functools.partial(AsyncHub, data=data, url=url, autostart=autostart, name=NAME)
    if http is not None:
        from carrel.mcp.http import serve_http

        asyncio.run(serve_http(open_hub, http))
    else:
        asyncio.run(_serve_stdio(open_hub, inside))


async def _serve_stdio(open_hub: OpenHub, inside: bool) -> None:
    # The SDK reads in a thread that cannot be interrupted; Ctrl-C would wait for a line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if inside:
        hub = ToolHub(inside=True)
        async with hub.connected(open_hub):
            await CarrelServer(hub).run_stdio_async()
    else:
        async with open_tool_hub(open_hub) as hub:
            await CarrelServer(hub).run_stdio_async()
