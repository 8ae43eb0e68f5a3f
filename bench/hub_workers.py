"""One process of the benchmark of the hub: see `bench.hub_jobs`."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from bench.hub_jobs import Job, Result


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    print(msgspec.json.encode(_do(job)).decode(), flush=True)


def _do(job: Job) -> Result:
    # Each side imports only its own clients: the other's need not be installed.
    if job.side == "redis":
        from bench import redis_clients

        return redis_clients.ROLES[job.role](job)
    from bench import hub_clients

    return hub_clients.run(job)


if __name__ == "__main__":
    main()
