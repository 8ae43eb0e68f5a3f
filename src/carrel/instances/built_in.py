"""The kinds of servers that are built in."""

from __future__ import annotations

from carrel.domain.instances import PortBy, Server, Swap, Transport, WorkLines, Wrap

SERENA_SETTINGS = """\
language_backend: LSP
agent_interface: tools
gui_log_window: false
web_dashboard: false
web_dashboard_open_on_launch: false
# Beside the project two instances of it would write the same files.
project_serena_folder_location: "{state}/serena/project"
# The usual one for Python is fetched from the network, which is not there.
ls_priorities:
  python: 0
  python_jedi: 3
# Left out, this means all: a project could then have a command of its own run.
trusted_project_path_patterns: []
projects: []
"""

_SERENA = (
    *("--project", "{project}", "--agent-interface", "tools", "--context", "ide"),
    *("--enable-web-dashboard", "false", "--open-web-dashboard", "false"),
)

SERENA = Server(
    "serena",
    (
        *("serena", "start-mcp-server", "--transport", "streamable-http"),
        *("--host", "{host}", "--port", "0", *_SERENA),
    ),
    port_by=PortBy.SOCKET,
    wrap=Wrap.UVICORN,
    stdio=("serena", "start-mcp-server", "--transport", "stdio", *_SERENA),
    env={"SERENA_HOME": "{state}/serena", "SERENA_USAGE_REPORTING": "false"},
    files={
        "serena/serena_config.yml": SERENA_SETTINGS,
        # Serena takes the project's own folder when its own is not there yet.
        "serena/project/": "",
        # Made when Serena is imported, which a warm process has done somewhere else.
        "serena/memories/global/": "",
    },
    copies={
        ".serena/project.yml": "serena/project/project.yml",
        ".serena/project.local.yml": "serena/project/project.local.yml",
        ".serena/memories": "serena/project/memories",
    },
    swaps=(
        Swap(
            ("serena/project/project.yml", "serena/project/project.local.yml"),
            ("language_servers", "languages", "language"),
            "python",
            "python_jedi",
            program="jedi-language-server",
            fetched_by=("uvx", "uv"),
            unless="ls_specific_settings",
            note="The project's settings for Serena name the language server `python`, which would"
            " be fetched from the network. `python_jedi`, which is here, is used instead.",
        ),
    ),
    work_lines=WorkLines(
        begins=r"Asynchronous language determination starting|Language server initialization"
        r" starting",
        works=r"Language server initialization completed",
        found=r"Starting language server process via command|Language server initialization"
        r" completed",
        fails=r"(?:Error starting language server|Fatal exception:) (.+)",
        hint="Install this language server where Serena finds it: beside it, or in /usr. Or change"
        " `language_servers` in .serena/project.yml of the project.",
    ),
    # The first two take the time; the others are what it imports only when it serves.
    preload=(
        *("serena.cli", "serena.mcp", "serena.repl.api.lsp_api", "serena.util.git"),
        *("sensai.util.git", "solidlsp.language_servers.jedi_server", "pydantic.root_model"),
        *("anyio._backends._asyncio", "uvicorn.lifespan.on", "uvicorn.loops.auto"),
        *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
    ),
    # In an environment of its own: what it pins is not what Carrel needs.
    install="pipx install serena-agent && pipx inject --include-apps serena-agent"
    " jedi-language-server",
)

EVERYTHING = Server(
    "everything",
    ("mcp-server-everything", "streamableHttp"),
    port_by=PortBy.PROCESS,
    # It cannot be told an address: it listens on all that there are.
    env={"PORT": "0"},
    stdio=("mcp-server-everything", "stdio"),
    install="npm install --global @modelcontextprotocol/server-everything",
)

FILESYSTEM = Server(
    "filesystem",
    ("mcp-server-filesystem", "{project}"),
    transport=Transport.STDIO,
    port_by=PortBy.SOCKET,
    wrap=Wrap.STDIO,
    install="npm install --global @modelcontextprotocol/server-filesystem",
)

CARREL = Server(
    "carrel",
    # A daemon that it started in its sandbox would be another one.
    # Who comes is asked by what is wrapped around it.
    ("carrel", "--no-start", "mcp", "--no-token", "--http", "{host}:0"),
    port_by=PortBy.SOCKET,
    wrap=Wrap.UVICORN,
    stdio=("carrel", "--no-start", "mcp"),
    daemon=True,
    preload=(
        *("carrel.cli.main", "carrel.cli.verbs.mcp", "carrel.mcp.server", "carrel.mcp.http"),
        *("anyio._backends._asyncio", "uvicorn.lifespan.on", "uvicorn.loops.auto"),
        *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
    ),
    install="pip install carrel",
)

BUILT_IN = (SERENA, EVERYTHING, FILESYSTEM, CARREL)
