"""The program by click: help, explanations of mistakes, completion."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from carrel import __version__
from carrel.cli import completing, spec
from carrel.cli.call import Call
from carrel.cli.failing import FAILED, INTERRUPTED
from carrel.cli.parsing import PROGRAM_OPTIONS
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.table import GROUPS, HELP, VERBS, with_verb
from carrel.cli.values import convert
from carrel.domain.errors import MessageInvalid

NAME = "carrel"


class Words(click.ParamType[Any]):
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
        own = [name.removeprefix(self.prefix) for name in VERBS if name.startswith(self.prefix)]
        return [name for name in own if " " not in name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = f"{self.prefix}{cmd_name}"
        if not self.prefix and cmd_name in GROUPS:
            help = GROUPS[cmd_name]
            return LazyGroup(f"{cmd_name} ", name=cmd_name, help=help, short_help=help)
        file = VERBS.get(name, "")
        if not file or " " in cmd_name:
            return None
        module = import_module(f"carrel.cli.verbs.{file}")
        return _command(cmd_name, module.VERB, module.run)


def _command(name: str, verb: Verb, run: Callable[[Call], int]) -> click.Command:
    def callback(**given: object) -> int:
        context = click.get_current_context()
        return Call(run, {**_program_values(context), **_only_given(given)}).run()

    params: list[click.Parameter] = [_argument(one) for one in verb.arguments]
    params += [_option(one) for one in verb.options]
    help = f"{verb.summary}\n\n{verb.details}" if verb.details else verb.summary
    return click.Command(
        name,
        params=params,
        callback=callback,
        help=help,
        short_help=verb.summary.rstrip("."),
        context_settings={"help_option_names": list(HELP)},
    )


def _program_values(context: click.Context) -> dict[str, object]:
    return _only_given(context.find_root().params)


def _only_given(values: dict[str, Any]) -> dict[str, object]:
    """As the quick parser has it: what was not given is not there."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value not in (None, False, ())
    }


def _option(option: Option) -> click.Option:
    names = [*option.flags, option.name]
    if option.kind == spec.FLAG:
        return click.Option(names, is_flag=True, help=option.help)
    return click.Option(
        names,
        type=Words(option),
        multiple=option.repeats,
        help=option.help,
        metavar=option.metavar or "|".join(option.choices) or None,
    )


def _argument(argument: Argument) -> click.Argument:
    complete = completing.completer(argument.completes) if argument.completes else None
    return click.Argument(
        [argument.name],
        required=argument.required,
        nargs=-1 if argument.many else 1,
        metavar=argument.metavar if argument.required else f"[{argument.metavar}]",
        type=click.UNPROCESSED,
        shell_complete=complete,
    )


def make_program() -> click.Group:
    params: list[click.Parameter] = [_option(one) for one in PROGRAM_OPTIONS]
    program = LazyGroup(
        "",
        name=NAME,
        params=params,
        help="A private desk for every coding-agent session.",
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
        raise MessageInvalid(_sentence(error.format_message()), hint=f"{where} --help") from None
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        raise MessageInvalid(_sentence(error.format_message())) from None
    return code if isinstance(code, int) else FAILED if code else 0


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."
