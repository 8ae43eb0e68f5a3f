"""The composition root: the only place that knows which rooms there are.

`rooms` has trees and runtimes alone, for programs that use Carrel as a library; `service`
has all of it, for the daemon.
"""

from carrel.app.rooms import App, open_app

__all__ = ["App", "open_app"]
