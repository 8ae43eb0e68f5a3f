"""carrel completion: what a shell needs to complete words."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import Argument, Verb

SHELLS = ("bash", "zsh", "fish")
VERB = Verb(
    "Print what makes a shell complete words: bash, zsh or fish.",
    Argument("shell"),
    details=(
        'bash: eval "$(carrel completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc. fish: '
        "carrel completion fish > ~/.config/fish/completions/carrel.fish"
    ),
)


def run(call: Call) -> int:
    from click.shell_completion import get_completion_class

    from carrel.cli.main import COMPLETING
    from carrel.cli.program import NAME, make_program
    from carrel.domain.errors import MessageInvalid

    shell = call.text("shell")
    kind = get_completion_class(shell)
    if kind is None or shell not in SHELLS:
        raise MessageInvalid(f"{shell!r} is not known here.", hint=f"Use {', '.join(SHELLS)}.")
    source = kind(make_program(), {}, NAME, COMPLETING).source()
    if call.json:
        call.show({"shell": shell, "source": source})
    else:
        call.say(source)
    return 0
