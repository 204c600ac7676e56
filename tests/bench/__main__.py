"""``make bench``: what Dragoman costs, beside Envoy, nginx and a plain grpc.aio relay.

    python -m tests.bench [--full] [--check] [--only MEASURE] [--publish]

Writes ``build/bench/run.json`` and prints tables. ``--check`` measures only what has a floor, and exits with 1
if a figure breaks one. ``--publish`` writes this run and the one before it into ``docs/performance.json``, the
tables of ``docs/performance.md`` and its plot.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.hops import BUILD, ENVOY, ROOT, go_program, load_program, missing_hops, version
from tests.bench.measures import FIGURES, MEASURES, TITLES, Rig, measure, selected

DOCS = ROOT / "docs"


def machine(go: Path | None) -> dict[str, Any]:
    """Return what figures depend on."""
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    says = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout if go else ""
    return {
        "cpu": f"{os.cpu_count()} x {model[0] if model else platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "protobuf": version("protobuf"),
        "envoy": ENVOY,
        "go": says.strip(),
    }


async def taken(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the run as it is written."""
    commit = await asyncio.to_thread(
        subprocess.run, ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    loads, began = [os.getloadavg()[0]], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dgm-") as name:
        go = await asyncio.to_thread(go_program)
        rig = Rig(load_program(go), Path(name), missing_hops(Path(name)), arguments.full)
        await measure(rig, selected(arguments.only, check=arguments.check))
    loads.append(os.getloadavg()[0])
    return {
        "name": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": commit.stdout.strip(),
        "mode": "full" if arguments.full else "quick",
        "minutes": round((time.monotonic() - began) / 60, 1),
        "load": loads,
        "machine": machine(go),
        "missing": rig.missing,
        "remarks": rig.remarks,
        "samples": rig.samples,
    }


def tables(runs: list[dict[str, Any]]) -> str:
    """Return the tables of what each measure found in the last run."""
    found = {title: report.hops_table(name, runs[-1]["samples"]) for name, title in TITLES.items()}
    return "\n\n".join(f"### {title}\n\n{table}" for title, table in found.items() if table)


def conditions(runs: list[dict[str, Any]]) -> str:
    """Return the table of when and on what the runs were made."""
    rows = [
        ["commit", *(run["commit"] for run in runs)],
        ["mode, minutes", *(f"{run['mode']}, {run['minutes']}" for run in runs)],
        ["load average before, after", *(", ".join(f"{load:.1f}" for load in run["load"]) for run in runs)],
        *([key, *(run["machine"][key] for run in runs)] for key in runs[-1]["machine"]),
        ["not there", *(", ".join(run["missing"]) or "-" for run in runs)],
        ["remarks", *("; ".join(run["remarks"]) or "-" for run in runs)],
    ]
    return report.table(["", *(run["name"] for run in runs)], rows)


def publish(run: dict[str, Any]) -> None:
    """Write the run, and the one before it, into the documentation."""
    file = DOCS / "performance.json"
    earlier = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []
    runs = [*earlier[-1:], run]
    file.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
    (DOCS / "performance.svg").write_text(report.plot(FIGURES, run["samples"]), encoding="utf-8")
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    contents = {"goals": report.goals_table(FIGURES, runs), "conditions": conditions(runs), "measures": tables(runs)}
    for name, content in contents.items():
        page = report.replaced(page, name, content)
    (DOCS / "performance.md").write_text(page, encoding="utf-8")


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for; exit with 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="more rounds, longer; without it two minutes")
    parser.add_argument("--check", action="store_true", help="measure what has a floor; fail if it breaks one")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.*")
    parser.add_argument("--only", default="", choices=["", *(one.name for one in MEASURES)], help="one measure")
    arguments = parser.parse_args(words)
    if arguments.publish and (arguments.check or arguments.only):
        parser.error("--publish writes the tables of all measures; leave out --check and --only")
    return arguments


def main() -> int:
    """Run what the command line says."""
    arguments = arguments_of()
    run = asyncio.run(taken(arguments))
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    print(report.goals_table(FIGURES, [run]), tables([run]), conditions([run]), sep="\n\n")
    if arguments.publish:
        publish(run)
    broken = report.broken_floors(FIGURES, run["samples"]) if arguments.check else []
    print(*broken, sep="\n", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
