"""carrel token create: a token, whose secret is shown once."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import SECONDS, SPACES, TEXT, Option, Verb
from carrel.client.requests import telling

VERB = Verb(
    "Make a token for the API on TCP; the secret is printed, once.",
    details="Without --label and --space it is an administrator's.",
    options=(
        Option("--name", kind=TEXT, help="What it is for."),
        Option("--label", kind=TEXT, metavar="K=V", help="Only spaces with this label."),
        Option("--space", kind=TEXT, metavar="SPACE", completes=SPACES, help="Only this space."),
        Option("--ttl", kind=SECONDS, metavar="TIME", help="Valid for so long."),
    ),
)


def run(call: Call) -> int:
    label, space = call.text("label"), call.text("space")
    if label and space:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid("A token has one scope.", hint="Give --label or --space.")
    scope = f"label:{label}" if label else f"space:{space}" if space else "admin"
    content = {"name": call.text("name"), "scope": scope, "ttl_s": call.number("ttl")}
    token = call.link.json(telling("POST", "/v1/tokens", content))
    if call.json:
        call.show(token)
    else:
        call.say(token["secret"])
        call.note(f"{token['id']}, scope {token['scope']}. It is not shown again.")
    return 0
