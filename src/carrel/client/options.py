"""The JSON that the daemon takes for what Python says about a new space, a command, a turn, an
instance and a request."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, BinaryIO

from carrel.api.types.agents import TurnOptions
from carrel.api.types.instances import InstanceOptions, ToolOption
from carrel.api.types.requests import RequestOptions
from carrel.api.types.runs import CommandOptions
from carrel.api.types.spaces import SpaceOptions
from carrel.client.projects import describe
from carrel.domain.errors import MessageInvalid
from carrel.domain.requests import Keeping, Policy
from carrel.domain.turns import Attachment

Path = str | os.PathLike[str]
Project = str | os.PathLike[str] | None
Input = bytes | str | BinaryIO | None
Server = str | Mapping[str, object]
"""A server of MCP: its name, or its description: `{"command": [...], ...}`."""


# Spaces


def space_content(project: Project, options: SpaceOptions) -> dict[str, Any]:
    content = _plain_members(options)
    ref = content.pop("ref", None)
    if "base" not in content:
        content["project"] = describe(project, ref)
    return content


# Commands


def command_content(argv: Sequence[str], options: CommandOptions) -> dict[str, Any]:
    said = {name: value for name, value in _plain_members(options).items() if value is not None}
    return {"argv": list(argv), **said}


# Turns


def turn_content(prompt: str, options: TurnOptions) -> dict[str, Any]:
    content = {"prompt": prompt, **_plain_members(options)}
    if "attachments" in content:
        content["attachments"] = [_attached(one) for one in content["attachments"]]
    return content


def _attached(one: Attachment) -> dict[str, str]:
    folder = "context" if one.in_context else "tree"
    return {"path": one.path, "folder": folder, "media_type": one.media_type}


# Reviews


def diff_content(paths: Iterable[str], ignored: bool, to: str, since: str) -> dict[str, Any]:
    return {"paths": list(paths), "ignored": ignored, "to": to, "since": since}


# Instances


def instance_content(
    server: Server, project: Path | None, space: str | None, options: InstanceOptions
) -> dict[str, Any]:
    if (project is None) == (space is None):
        raise MessageInvalid(
            "An instance is for a project or for a space.", hint="Give one of project and space."
        )
    content: dict[str, Any] = {"server": server if isinstance(server, str) else dict(server)}
    if project is not None:
        content["project_path"] = os.path.abspath(os.path.expanduser(project))
    else:
        content["space_id"] = space
    content.update(_plain_members(options))
    if "tool_ready" in options:
        content["tool_ready"] = _tool(options["tool_ready"])
    return content


def _tool(tool: ToolOption) -> dict[str, object]:
    name, arguments = (tool, {}) if isinstance(tool, str) else tool
    return {"name": name, "arguments": dict(arguments)}


# Requests


def new_request_id() -> str:
    """So that asking again after a lost connection makes no second workspace."""
    return f"py-{secrets.token_hex(12)}"


def request_content(instructions: str, project: Project, options: RequestOptions) -> dict[str, Any]:
    content = {"instructions": instructions, **_plain_members(options)}
    content["request_id"] = options.get("request_id") or new_request_id()
    ref = content.pop("ref", None)
    if project is not None:
        content["project"] = describe(project, ref)
    if "workspace_path" in content:
        content["workspace_path"] = os.path.abspath(os.path.expanduser(content["workspace_path"]))
    limits = content.get("limits", {})
    for name in ("tier", "timeout_s"):
        if (said := content.pop(name, None)) is not None:
            limits[name] = said
    if limits:
        content["limits"] = limits
    return content


def _plain_members(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in options.items()}


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Keeping):
        return _keeping(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return list(value)
    return value


def _keeping(keeping: Keeping) -> dict[str, object]:
    """Only what says something under its policy."""
    content: dict[str, object] = {"policy": keeping.policy}
    if keeping.policy is Policy.RETAIN:
        content["seconds"] = keeping.seconds
    elif keeping.policy is Policy.VERSIONED:
        content |= {"series": keeping.series, "newest": keeping.newest, "older": keeping.older}
    else:
        content["hold_s"] = keeping.hold_s
    return content
