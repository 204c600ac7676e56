"""A router as a program: ``python -m tests.chaos.serve ADDRESS STATE_DIR ORPHAN_AFTER_S [RUN_LOG]``."""

import sys
from pathlib import Path

from dragoman.router.app import RouterConfig, run_router


def main() -> None:
    """Serve the installed adapters until told to end."""
    address, state_dir, orphan_after_s, run_log = [*sys.argv[1:], ""][:4]
    config = RouterConfig(
        listen=(address,),
        state_dir=Path(state_dir),
        user_manifests=False,
        adapter_orphan_after_s=float(orphan_after_s),
        run_log=run_log,
        log_format="json",
    )
    run_router(config)


if __name__ == "__main__":
    main()
