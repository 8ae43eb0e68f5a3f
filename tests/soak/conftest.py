"""A soak is run by `make soak`."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("CARREL_FAULTS") else ["test_*.py"]
