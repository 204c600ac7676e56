"""A small program for the tour: it works for some seconds and writes on both streams."""

import os
import sys
import time

STEPS = ("reading the task", "looking around", "writing a little", "checking it", "tidying up")
STEP_S = 0.8


def main() -> int:
    """Work, tell about it, and succeed."""
    prompt = sys.stdin.read().strip()
    print(f"I am process {os.getpid()}; my task: {prompt}", flush=True)  # noqa: T201 - that is what it does
    for number, step in enumerate(STEPS, 1):
        time.sleep(STEP_S)
        print(f"step {number} of {len(STEPS)}: {step}", flush=True)  # noqa: T201 - as above
        if number % 2:
            print(f"a remark on standard error, after step {number}", file=sys.stderr, flush=True)  # noqa: T201 - as above
    print("done", flush=True)  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main())
