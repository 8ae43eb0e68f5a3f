"""The program by click: help, explanations of mistakes, completion of words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from carrel import __version__
from carrel.cli.call import FAILED, VerbCall, invalid
from carrel.cli.commands import COMMANDS, GROUPS, HELP, SECTIONS, load, with_verb
from carrel.cli.errors import INTERRUPTED
from carrel.cli.parser import PROGRAM_OPTIONS
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import convert
from carrel.client.address import find_address
from carrel.client.http import operation
from carrel.client.link import Link
from carrel.domain.errors import CarrelError

NAME = "carrel"
ANSWER_S = 2.0
"""For the daemon to say what a word can be completed to. Somebody pressed Tab and waits; no
answer is better than a late one."""
MOST = 200

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class OptionType(click.ParamType[Any]):
    """A value as the verb's own description says."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = (option.metavar or option.kind).lower()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        try:
            return convert(self.option, value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        words = [word for word in self.option.choices if word.startswith(incomplete)]
        return [CompletionItem(word) for word in words]


class LazyGroup(click.Group):
    """Verbs are imported when they are called, or described."""

    def __init__(self, prefix: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.prefix = prefix

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_verb(self.prefix.rstrip(), args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = [name.removeprefix(self.prefix) for name in COMMANDS if name.startswith(self.prefix)]
        return list(dict.fromkeys(name.split()[0] for name in own))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if not self.prefix and cmd_name in GROUPS:
            help = GROUPS[cmd_name]
            short = help.rstrip(".")
            return LazyGroup(f"{cmd_name} ", name=cmd_name, help=help, short_help=short)
        name = f"{self.prefix}{cmd_name}"
        if name not in COMMANDS or " " in cmd_name:
            return None
        return make_command(cmd_name, load(name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.prefix:
            super().format_commands(ctx, formatter)
            return
        width = max(map(len, self.list_commands(ctx)))
        for title, modules in SECTIONS.items():
            rows = []
            for name in dict.fromkeys(one.split()[0] for own in modules.values() for one in own):
                command = self.get_command(ctx, name)
                assert command is not None
                rows.append((name.ljust(width), command.get_short_help_str()))
            with formatter.section(title):
                formatter.write_dl(rows)


def make_command(name: str, verb: Verb) -> click.Command:
    def callback(**given: object) -> int:
        program = click.get_current_context().find_root().params
        return VerbCall(verb, {**_only_given(program), **_only_given(given)}).run()

    params: list[click.Parameter] = [_argument(one) for one in verb.arguments]
    params += [_option(one) for one in verb.options]
    return click.Command(
        name,
        params=params,
        callback=callback,
        help=verb.help,
        short_help=verb.summary.rstrip("."),
        context_settings={"help_option_names": list(HELP)},
    )


def _only_given(values: dict[str, Any]) -> dict[str, object]:
    """As the quick parser has it: what was not given is not there."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value not in (None, False, ())
    }


def _option(option: Option) -> click.Option:
    names = [*option.flags, option.name]
    if option.kind == "flag":
        return click.Option(names, is_flag=True, help=option.help)
    return click.Option(
        names,
        type=OptionType(option),
        multiple=option.repeats,
        help=option.help,
        metavar=option.metavar,
    )


def _argument(argument: Argument) -> click.Argument:
    return click.Argument(
        [argument.name],
        required=argument.required,
        nargs=-1 if argument.many else 1,
        metavar=argument.metavar if argument.required else f"[{argument.metavar}]",
        type=click.UNPROCESSED,
        shell_complete=_completer(argument.completes) if argument.completes else None,
    )


def make_program() -> click.Group:
    params: list[click.Parameter] = [_option(one) for one in PROGRAM_OPTIONS]
    program = LazyGroup(
        "",
        name=NAME,
        params=params,
        help="Run coding agents side by side, each in a private copy of the project and a sandbox.",
        no_args_is_help=False,
        invoke_without_command=True,
        callback=_without_verb,
        context_settings={"help_option_names": list(HELP)},
    )
    decorate = click.version_option(__version__, prog_name=NAME)
    return decorate(program)


def _without_verb(**_: object) -> int:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


def run_program(words: list[str]) -> int:
    """Raises the errors of verbs, and mistakes of usage as `MessageInvalid`."""
    try:
        code = make_program().main(words, prog_name=NAME, standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else NAME
        meant = _meant(error)
        hint = f"{where} {meant}" if meant else f"{where} --help"
        raise invalid(_sentence(error.format_message()), hint=hint) from None
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        raise invalid(_sentence(error.format_message())) from None
    return code if isinstance(code, int) else FAILED if code else 0


def _meant(error: click.UsageError) -> str:
    """The verb that is nearest to one that there is not."""
    context = error.ctx
    found = _NO_COMMAND.fullmatch(error.format_message())
    if found is None or context is None or not isinstance(context.command, click.Group):
        return ""
    known = context.command.list_commands(context)
    return next(iter(difflib.get_close_matches(found["verb"], known, 1)), "")


_NO_COMMAND = re.compile(r"No such command '(?P<verb>.*)'\.")


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."


# Completion. Names of spaces and runs are asked of the daemon; pressing Tab starts none.


def _completer(what: str) -> Completer:
    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        here = [CompletionItem(incomplete, type="file")] if what == "files" else []
        if here and (":" in incomplete or "/" in incomplete or incomplete.startswith(".")):
            return here
        link = Link(find_address(), timeout_s=ANSWER_S)
        try:
            items = _runs(link) if what == "runs" else _spaces(link)
        except CarrelError:
            return here
        finally:
            link.close()
        if here:
            # `SPACE:` or a file of this machine.
            items = [CompletionItem(f"{item.value}:") for item in items]
        return [*here, *(item for item in items if str(item.value).startswith(incomplete))]

    return complete


def _spaces(link: Link) -> list[CompletionItem]:
    spaces = link.json(operation("spaces.list", query=[("limit", MOST)]))["spaces"]
    return [CompletionItem(space["name"], help=space["id"]) for space in spaces]


def _runs(link: Link) -> list[CompletionItem]:
    query = [("limit", MOST), ("state", "running")]
    return [
        CompletionItem(run["id"], help=run["display_command"][:40])
        for space in link.json(operation("spaces.list", query=query))["spaces"]
        for run in link.json(operation("runs.list", space["id"]))["runs"]
    ]
