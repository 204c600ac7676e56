"""A router as a program: ``python -m tests.chaos.serve CONFIG``, fields of ``RouterConfig`` as JSON."""

import json
import sys
from pathlib import Path

from dragoman.router.app import RouterConfig, run_router


def main() -> None:
    """Serve until told to end."""
    given = json.loads(sys.argv[1])
    given |= {"listen": tuple(given["listen"]), "addresses": tuple(given["addresses"])}
    given["state_dir"] = Path(given["state_dir"])
    run_router(RouterConfig(user_manifests=False, log_format="json", **given))


if __name__ == "__main__":
    main()
