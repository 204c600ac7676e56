"""A router as a program: ``python -m tests.chaos.serve CONFIG``, fields of ``RouterConfig`` as JSON."""

import json
import sys
from pathlib import Path

from dragoman.router.app import RouterConfig, run_router


def main() -> None:
    """Serve until a signal ends it."""
    fields = json.loads(sys.argv[1])
    fields |= {"listen": tuple(fields["listen"]), "addresses": tuple(fields["addresses"])}
    fields["state_dir"] = Path(fields["state_dir"])
    run_router(RouterConfig(user_manifests=False, log_format="json", **fields))


if __name__ == "__main__":
    main()
