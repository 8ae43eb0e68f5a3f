"""Writes the pages that are made from the program itself: `docs/settings.md` from the class of the
settings, and the manual page `man/carrel.1` from what the verbs take.

    python tools/pages.py [--check]

With --check it writes nothing, and says which page is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from carrel.cli.commands import DEFAULTS, SECTIONS, load
from carrel.cli.parser import PROGRAM_OPTIONS
from carrel.cli.spec import Argument, Option, Verb
from carrel.config import (
    AgentSettings,
    InstanceSettings,
    SandboxSettings,
    ServerSettings,
    Settings,
    ToolSettings,
    fields_of,
)

ROOT = Path(__file__).resolve().parent.parent
OWN = "tools/pages.py"


# The settings

INTRODUCTION = """\
# Settings

<!-- Made by tools/pages.py from src/carrel/config.py: change the texts there. -->

Carrel reads one file of TOML: `~/.config/carrel/config.toml` (below `XDG_CONFIG_HOME` if that is
set; for root `/etc/carrel/config.toml`), or the one that `CARREL_CONFIG` names. The usual one
need not be there; one that is named must be. An unknown key and a wrong value are refused when the
daemon starts. `CARREL_DATA` comes before `data` in the file.

```
carrel config                          # every setting, its value, and where that comes from
carrel config get idle_s
carrel config set idle_s 3600          # the other lines of the file and its comments stay
carrel config explain idle_s
carrel config path
```

The daemon reads the file when it starts. `carrel config set` says so when one runs, with the
command that restarts it; what runs in spaces goes on meanwhile.
"""
TABLES: dict[str, type[msgspec.Struct]] = {
    "[sandbox]": SandboxSettings,
    "[instances]": InstanceSettings,
    "[agents.NAME]": AgentSettings,
    "[servers.NAME]": ServerSettings,
    "[servers.NAME.tool_ready]": ToolSettings,
}


def settings_page() -> str:
    parts = [INTRODUCTION, *_rows(Settings)]
    for title, kind in TABLES.items():
        about = " ".join((inspect.getdoc(kind) or "").split())
        parts += [f"\n## `{title}`\n\n{about}\n", *_rows(kind)]
    return "\n".join(parts) + "\n"


def _rows(kind: type[msgspec.Struct]) -> Iterator[str]:
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    for one in fields_of(kind):
        default = f"`{one.default}`" if one.default else ""
        sentence = one.sentence.replace("|", "\\|")
        yield f"| `{one.name}` | {one.type} | {default} | {sentence} |"


# The manual page

HEAD = """\
.\\" Made by tools/pages.py from what the verbs of the program take: change the texts there.
.TH CARREL 1 "" "Carrel" "User Commands"
.SH NAME
carrel \\- private desks for coding agents: copies of a project, sandboxes, supervised agents
.SH SYNOPSIS
.B carrel
.RI [ OPTIONS ]
.I VERB
.RI [ ARGUMENTS ]
.SH DESCRIPTION
Every verb has a help of its own:
.BR "carrel VERB \\-\\-help" .
Verbs that need the daemon start it.
"""
TAIL = """\
.SH ENVIRONMENT
.TP
.B CARREL_DATA
The data folder.
.TP
.B CARREL_CONFIG
The settings file.
.TP
.B CARREL_URL
The address of a daemon on TCP.
.TP
.B CARREL_TOKEN
The token for it.
.SH FILES
.TP
.I ~/.config/carrel/config.toml
The settings; for root
.IR /etc/carrel/config.toml .
.TP
.I ~/.local/share/carrel
The data folder; for root
.IR /var/lib/carrel .
.SH EXIT STATUS
0: done. 1: something went wrong. 2: the command line is not valid. 3: the named object does not
exist. 4: the state does not allow it. 5: not allowed. 6: no daemon. 7: this machine cannot do it.
8: verify or doctor found something wrong. A command in a space gives its own.
.SH SEE ALSO
.BR git (1),
.BR bwrap (1),
.BR tmux (1)
"""


def manual_page() -> str:
    lines = [".SH OPTIONS", *_options(PROGRAM_OPTIONS)]
    for title, modules in SECTIONS.items():
        lines.append(f".SH {_escaped(title.upper())}")
        for name in (one for names in modules.values() for one in names):
            lines += _verb(name, load(name))
    return HEAD + "\n".join(lines) + "\n" + TAIL


def _verb(name: str, verb: Verb) -> Iterator[str]:
    group, _, own = name.partition(" ")
    words = f"{group} [{own}]" if DEFAULTS.get(group) == own else name
    yield f'.SS "carrel {_escaped(words)}{"".join(map(_argument, verb.arguments))}"'
    for number, paragraph in enumerate(inspect.cleandoc(verb.help).split("\n\n")):
        if number:
            yield ".PP"
        yield _text(paragraph)
    yield from _options(verb.options)


def _argument(one: Argument) -> str:
    return f" {one.metavar}" if one.required else f" [{one.metavar}]"


def _options(options: tuple[Option, ...] | list[Option]) -> Iterator[str]:
    for one in options:
        usage = ", ".join(one.flags) + (f" {one.metavar}" if one.metavar else "")
        yield ".TP"
        yield f'.B "{_escaped(usage)}"'
        yield _text(one.help)


def _text(paragraph: str) -> str:
    text = _escaped(" ".join(paragraph.split()))
    return re.sub(r"^([.'])", r"\\&\1", text)


def _escaped(text: str) -> str:
    """A dash is a minus, which can be copied; quotes would end a word of a request."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return plain.replace("`", "").replace("…", "...").replace("'", "\\(aq")


PAGES = {"docs/settings.md": settings_page, "man/carrel.1": manual_page}


def main() -> int:
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / name, page()
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    if stale:
        print(f"Stale: {', '.join(stale)}. Run: python {OWN}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
