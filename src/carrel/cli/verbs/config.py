"""carrel config: the settings of this machine, where each comes from, and one changed."""

from __future__ import annotations

import os
import shlex

from carrel.cli.call import VerbCall
from carrel.cli.output import AnswerTable, clean
from carrel.cli.spec import Argument, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEY = Argument("key")
OWN = ("attach_prefix",)
"""Settings that this program reads, and not the daemon."""
SETTINGS = AnswerTable(
    "settings",
    {
        "SETTING": "name",
        "VALUE": lambda one: clean(one["text"]),
        "FROM": "from",
        "TYPE": "type",
    },
    shrink=("TYPE", "VALUE"),
)


@Verb()
def config_show(call: VerbCall) -> None:
    """Show every setting, its value, and where the value comes from.

    The verb may be left out: carrel config. A value is a default, or of the settings file, or
    of the environment.
    """
    call.answer({"settings": _found()}, SETTINGS)


@Verb(KEY)
def config_get(call: VerbCall) -> None:
    """Print the value of one setting, as the settings file has it."""
    from carrel.config import setting_named

    name = setting_named(call.text("key")).name
    found = next(one for one in _found() if one["name"] == name)
    call.answer(found, lambda one: clean(one["text"]))


@Verb(KEY, Argument("value"))
def config_set(call: VerbCall) -> None:
    """Change one setting in the settings file.

    The other lines of the file and its comments stay. A text needs no quotes; a list has commas
    between its values.
    """
    from carrel.cli.settings_file import change_setting

    key = call.text("key")
    path = change_setting(os.environ, key, call.text("value"))
    found = next(one for one in _found() if one["name"] == key)
    restart = _restart(call, key)
    call.answer({**found, "file": str(path), "restart": restart})
    if call.json:
        return
    call.note(f"{key} = {clean(found['text'])} is in {path} now.")
    if found["from"] == "environment":
        call.note("CARREL_DATA says otherwise, and comes first.")
    if restart:
        call.note(f"The daemon that runs has the old value. Restart it: {restart}")


@Verb(KEY)
def config_explain(call: VerbCall) -> None:
    """Say what one setting is for, and its default."""
    from carrel.config import setting_named

    about = setting_named(call.text("key"))
    default = about.default or "depends on the user"
    call.answer(
        {**about._asdict()},
        lambda _: f"{about.sentence}\nType: {about.type}. Default: {default}.",
    )


@Verb()
def config_path(call: VerbCall) -> None:
    """Print the path of the settings file, which need not be there."""
    from carrel.config import config_file

    path = config_file(os.environ)
    call.answer({"path": str(path or "")}, lambda one: one["path"])


def _found() -> list[dict[str, Any]]:
    """Every setting in the order of the class."""
    import msgspec

    from carrel.config import fields_of, found_settings, toml_text

    settings, sources = found_settings(os.environ)
    values = msgspec.to_builtins(settings, enc_hook=str)
    return [
        {
            "name": one.name,
            "value": values[one.name],
            "text": toml_text(getattr(settings, one.name)),
            "from": sources.get(one.name, "default"),
            "type": one.type,
        }
        for one in fields_of()
    ]


def _restart(call: VerbCall, key: str) -> str:
    """The command that makes a daemon which runs take the new value; empty when none runs."""
    from carrel.daemon import control

    data = "" if key in OWN else call.place.data
    if not data or not control.status(data).running:
        return ""
    words = ["carrel", "--data", data] if call.text("data") else ["carrel"]
    program = shlex.join(words)
    return f"{program} down && {program} up"
