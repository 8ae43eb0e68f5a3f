"""carrel down: the daemon ends; what runs in spaces goes on."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import Verb

VERB = Verb("End the daemon. What runs in spaces goes on, and the next daemon takes it up.")


def run(call: Call) -> int:
    from carrel.cli.local import own_data
    from carrel.daemon import control

    data = own_data(call)
    pid = control.stop(data)
    if call.json:
        call.show({"running": False, "pid": pid, "data": data})
    elif pid is None:
        call.note(f"No daemon runs for {data}.")
    else:
        call.say(f"The daemon (process {pid}) has ended.")
    return 0
