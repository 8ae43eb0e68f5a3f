"""The `carrel` program. One file per verb; a verb is imported when it is called."""

from __future__ import annotations

import click

from carrel import __version__


@click.group(invoke_without_command=True)
@click.version_option(__version__, prog_name="carrel")
@click.pass_context
def main(context: click.Context) -> None:
    """A private desk for every coding-agent session."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
