"""Taking work out of a space: into another space, or as one file."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import clean, is_terminal
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.terminal import write_stream
from carrel.cli.verbs.land import MOST_SHOWN, land_one, tell_landed


@Verb(
    SPACE,
    Argument("path", many=True, completes="files"),
    Option("--into OTHER", "The space that gets them."),
    Option("--force", "Replace what that space has in its own way."),
)
def take(call: VerbCall) -> None:
    """Bring files of a space's work into another space.

    PATH is a file or folder that the space has changed; what it has deleted is deleted in the other
    one too. If the other space has changed one of the files in its own way, nothing is taken.
    """
    if not call.text("into"):
        raise invalid("No space is named to take them into.", hint="Name it: --into OTHER")
    content = {
        "paths": call.texts("path"),
        "into": call.text("into"),
        "force": call.flag("force"),
    }
    done = call.ask("landings.take", call.text("space"), content=content)
    if call.json:
        call.show(done)
        return
    for file in done["listed"][:MOST_SHOWN]:
        call.say(f"{file['kind']} {clean(file['path'])}")
    if (more := done["files"] - MOST_SHOWN) > 0:
        call.note(f"… and {more:,} more.")
    call.note(f"Taken into {clean(done['name'])}. Take it back: carrel undo {done['id']}")


FORMATS = ("patch", "bundle", "tar")


@Verb(
    SPACE,
    Option("--patch", "A patch, for git am and git apply."),
    Option("--bundle", "A bundle of git, with one commit on top of the one that it began with."),
    Option("--tar", "A tar of the files that changed."),
    Option("--branch", "A branch in the project, as carrel land makes it."),
    Option("-o, --output FILE", "Write to this file; otherwise to standard output."),
    Option("-m, --message TEXT", "Give the commit this message.", to="message"),
)
def export(call: VerbCall) -> int | None:
    """Take the work of a space out, as one file or as a branch.

    It is what the space changed since it began, without what git ignores. A tar lists what was
    deleted in a file .carrel-deleted, with a zero byte after each name.
    """
    chosen = [name for name in (*FORMATS, "branch") if call.flag(name)]
    if len(chosen) != 1:
        raise invalid("Choose one of --patch, --bundle, --tar and --branch.", hint="Try: --patch")
    target = call.text("output")
    if chosen == ["branch"]:
        if target:
            raise invalid("A branch is in the project, not in a file.", hint="Leave out -o.")
        done = land_one(call, call.text("space"))
        if call.json:
            call.show(done)
        else:
            tell_landed(call, done)
        return None
    if not target and is_terminal(1):
        raise invalid("This is a terminal.", hint="Name a file with -o, or use a pipe.")
    from carrel.client.http import operation
    from carrel.client.transfer import save_export, tell_copied

    content = {"format": chosen[0], **call.content()}
    space = call.text("space")
    if target:
        size = save_export(call.link, space, content, target)
        call.answer({"target": target, "bytes": size})
        return None
    with call.link.open(operation("review.export", space, content=content)) as stream:
        write_stream(stream, 1)
    tell_copied(call.link, space, stream)
    return None
