"""Who may know whom, in ten lines of rules, and the few other things that keep the house as it was drawn."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ["services", "adapters/python", "clients/python"]
LONGEST_MODULE = 600

MAY_IMPORT: dict[str, set[str]] = {
    "v1": set(),
    "guard": set(),
    "protocol": {"v1"},
    "sdk": {"v1", "protocol", "guard"},
    "sidecar": {"protocol", "sdk"},
    "router": {"v1", "protocol", "guard"},
    "client": {"v1", "protocol"},
    "testkit": {"v1", "protocol"},
    "conformance": {"v1", "protocol", "testkit"},
    "adapters.*": {"v1", "protocol", "sdk"},
    "cli": {"v1", "protocol", "guard", "sdk", "router", "client", "testkit", "conformance"},
}
"""What each part may import of the others. An adapter never imports another, and no part imports an adapter: built-in
ones come in by an entry point, like a stranger's."""

MAY_IMPORT_IN_SDK: dict[str, set[str]] = {
    "_encoding": set(),
    "_process": set(),
    "rules": set(),
    "_changes": set(),
    "_skills": {"_encoding"},
    "_output": {"_encoding", "_process"},
    "spec": {"_encoding", "_output", "_skills"},
    "_request": {"_encoding", "_output", "_process", "_skills", "spec"},
    "_artifacts": set(),
    "_run": {"_artifacts", "_changes", "_encoding", "_output", "_process", "_request"},
    "adapter": {"_run", "spec"},
    "_detection": {"_encoding", "_output", "_request", "_run", "spec"},
    "_serving": {"_output", "_process", "_request", "_run", "_skills", "adapter", "spec"},
    "_agents": {
        *("_detection", "_encoding", "_output", "_process", "_request", "_run", "_skills"),
        *("adapter", "rules", "spec"),
    },
    "acp": {"_agents", "_encoding", "_output", "_process", "_request"},
}
"""What each part of the SDK may import of the others. A part comes after those that it imports, so there is no cycle.
The public modules beside them only pass names on, and may import any part with an underscore."""

MAY_IMPORT_IN_ROUTER: dict[str, set[str]] = {
    "model": set(),
    "policy": {"model"},
    "adapters": {"model"},
    "storage": {"model"},
    "runs": {"adapters", "model", "policy", "storage"},
    "cluster": {"adapters", "model", "policy", "runs", "storage"},
    "api": {"adapters", "cluster", "model", "policy", "runs", "storage"},
}
"""What each package of the router may import of the others. A package comes after those that it imports."""

ROUTER_FRONT = {"__init__", "app", "config", "launching", "runtime_dirs", "starting", "system"}
"""The modules beside them: configuration, the machine, and the wiring."""

FRONT_MAY_IMPORT: dict[str, set[str]] = {
    "starting": {"adapters", "runtime_dirs"},
    "launching": {"adapters", "config", "starting"},
    "app": {*MAY_IMPORT_IN_ROUTER, *ROUTER_FRONT},
}
"""What the wiring may import. ``starting`` and ``launching`` come before the rest, so they import little."""

MODULES = {
    path.relative_to(ROOT / root): path
    for root in SOURCE_ROOTS
    for path in sorted((ROOT / root / "dragoman").rglob("*.py"))
}


def part(parts: tuple[str, ...]) -> str:
    """Return the part of ``("dragoman", "sdk", …)``; each adapter is a part of its own."""
    return ".".join(parts[1:3]) if parts[1] == "adapters" else parts[1].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Yield the absolute names a module imports anywhere in it, lazily too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_part_imports_only_whom_it_may() -> None:
    wrong = []
    for name, path in MODULES.items():
        own = part(name.parts)
        allowed = MAY_IMPORT["adapters.*" if own.startswith("adapters.") else own] | {own}
        others = {part(tuple(other.split("."))) for other in imported(path) if other.startswith("dragoman.")}
        wrong += [f"{name} imports {other}" for other in sorted(others - allowed)]
    assert wrong == []


def test_relative_imports_stay_within_their_part() -> None:
    wrong = []
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level >= len(name.parts) - 1:
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []


def test_the_guard_needs_nothing_but_python() -> None:
    """Where there is no /proc its process table comes from psutil, in one module that is loaded only there."""
    foreign = {
        (name.name, other.split(".")[0])
        for name, path in MODULES.items()
        if part(name.parts) == "guard"
        for other in imported(path)
        if other.split(".")[0] not in {*sys.stdlib_module_names, "dragoman"}
    }
    assert foreign <= {("_psutil_table.py", "psutil")}


def test_values_are_structs() -> None:
    """Making a data class executes generated source: half a millisecond at every start, where a struct takes 0.02."""
    users = {str(name) for name, path in MODULES.items() if "\n@dataclass" in path.read_text(encoding="utf-8")}
    assert users == {
        "dragoman/adapters/openclaw/environment.py",  # a field that is not shown
        "dragoman/router/model/run_record.py",  # a field that is made of others
    }


HEAVY = ["grpc", "google", "jsonschema", "structlog", "psutil"]


@pytest.mark.parametrize(
    "module", ["dragoman.guard", "dragoman.guard.__main__", "dragoman.cli.main", "dragoman.cli.dispatch"]
)
def test_what_starts_often_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "[]\n"


FOR_FEW = [
    *(
        "attr",
        "cryptography",
        "jsonschema",
        "jwt",
        "psutil",
        "psycopg",
        "rich",
        "sqlparse",
        "structlog",
        "yoyo",
        "grpc_reflection.v1alpha.reflection_pb2",
    ),
    *("google.rpc", "grpc_status", "difflib", "html", "unittest"),
]
"""What no process needs from its start on, and what takes long to import."""
FOR_RUNS = ["hashlib", "secrets", "shlex", "shutil", "tempfile"]
"""What an adapter needs for its runs, or for some of them, and not to serve."""
OF_SERVERS = [
    "dragoman.router",
    "dragoman.sdk",
    "importlib.metadata",
    "importlib.resources",
    "platformdirs",
    "sqlite3",
]


@pytest.mark.parametrize(
    ("module", "foreign"),
    [
        (
            "dragoman.sidecar, dragoman.adapters.process.adapter",
            [
                *("dragoman.router", "dragoman.client", "dragoman.cli", "click", *FOR_RUNS, *OF_SERVERS[2:]),
                *("dataclasses", "dragoman.protocol.dialing", "google.protobuf.json_format", "pickle"),
                "google.protobuf.text_format",
            ],
        ),
        ("dragoman.router.app", ["dragoman.sdk", "dragoman.client", "dragoman.cli", "click"]),
        ("dragoman.client", ["dragoman.cli", "click", "random", "tomllib", *FOR_RUNS, *OF_SERVERS]),
        ("dragoman.cli.commands.run", ["shutil", "tempfile", "tomllib", *OF_SERVERS]),
    ],
)
def test_what_few_processes_need_is_imported_when_it_is_used(module: str, foreign: list[str]) -> None:
    program = f"import sys, {module}; print([name for name in {[*FOR_FEW, *foreign]} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "[]\n"


def test_a_command_starts_its_adapter_before_it_imports_what_it_needs_itself() -> None:
    """Nine tenths of what a command without a router imports come while its adapter starts."""
    own = ["asyncio", "click", "google.protobuf", "grpc", "importlib.metadata", "inspect", "logging", "msgspec"]
    program = f"import sys, dragoman.cli.main, dragoman.cli.connection.early; print({{*sys.modules}} & {{*{own}}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "set()\n"


def test_a_command_starts_an_adapter_that_is_not_known_before_it_imports_grpc_and_protobuf() -> None:
    """Half of what a command without a router imports comes while such an adapter starts."""
    started_by = "dragoman.cli.dispatch, dragoman.cli.commands.run, dragoman.cli.connection.embedded_router"
    program = f"import sys, {started_by}; print({{'grpc', 'google.protobuf'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("module", ["guard", "adapter_control"])
def test_a_guard_starts_without_what_is_slow_to_import(module: str) -> None:
    """It is started for each run, without site-packages; `dragoman.guard.launch` says how."""
    slow = [
        "asyncio",
        "ctypes",
        "dataclasses",
        "enum",
        "json",
        "logging",
        "pathlib",
        "re",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "struct",
        "subprocess",
        "typing",
    ]
    program = (
        f"import sys; sys.path.append({str(ROOT / 'services')!r});"
        f"import dragoman.guard.{module}; from dragoman.guard.tree import become_subreaper; become_subreaper();"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", ["dragoman.adapters.http", "dragoman.adapters.model_api"])
def test_an_adapter_imports_what_its_runs_need_only_then(module: str) -> None:
    slow = ["anthropic", "openai", "httpx2", "jsonpath", "h11"]
    program = f"import sys, {module}; {module}.adapter; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "[]\n"


def test_tasks_are_created_where_their_owner_is() -> None:
    """``create_task`` and task groups start a coroutine; ``ensure_future`` also accepts what another one owns.

    The router's modules are what remains.
    """
    users = {
        part(name.parts) for name, path in MODULES.items() if "ensure_future" in path.read_text(encoding="utf-8")
    }
    assert users <= {"router"}


def test_the_namespace_stays_a_namespace() -> None:
    """One ``dragoman/__init__.py`` would hide the other roots from an editable install."""
    found = [name for name in MODULES if str(name) in {"dragoman/__init__.py", "dragoman/adapters/__init__.py"}]
    assert found == []
    assert {part(name.parts) for name in MODULES} >= {"v1", "protocol"}


def test_no_module_is_called_utils_and_none_is_too_long() -> None:
    mine = [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]
    mine = [path for path in mine if not path.stem.endswith(("_pb2", "_pb2_grpc"))]
    assert [str(path) for path in mine if path.stem.strip("_") in {"utils", "util", "helpers", "misc"}] == []
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in mine}
    assert {path: count for path, count in lines.items() if count > LONGEST_MODULE} == {}


MOST_METHODS = 15
MOST_PARAMETERS = 6
LARGE_CLASSES = {
    # A parser has a method for each type of message.
    "dragoman.sdk.acp._parser.AcpParser",
    # A client has a method for each call of the contract.
    "dragoman.client._client.Client",
    "dragoman.guard.guard.Guard",
    "dragoman.sdk._process.child.Child",
}
"""Classes with more methods. The list only gets shorter."""
WIDE_FUNCTIONS = {
    # An input has a keyword for each field of the contract's.
    "dragoman.client._client.send",
}
"""Functions with more parameters. The list only gets shorter."""


def definitions() -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the classes and functions of all modules but generated ones, with their names."""
    for name, path in MODULES.items():
        if name.parts[1] != "v1":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{'.'.join(name.with_suffix('').parts)}.{node.name}", node


def test_no_class_has_too_many_methods() -> None:
    def methods(node: ast.ClassDef) -> int:
        return sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)

    classes = ((name, node) for name, node in definitions() if isinstance(node, ast.ClassDef))
    assert {name for name, node in classes if methods(node) > MOST_METHODS} == LARGE_CLASSES


def test_no_function_has_too_many_parameters() -> None:
    def parameters(arguments: ast.arguments) -> list[str]:
        rest = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        found = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest)]
        return found[found[:1] in (["self"], ["cls"]) :]

    functions = ((name, node) for name, node in definitions() if not isinstance(node, ast.ClassDef))
    assert {name for name, node in functions if len(parameters(node.args)) > MOST_PARAMETERS} == WIDE_FUNCTIONS


LAYERS = {
    "cli": ["commands", "interaction", "connection", "display"],
    "testkit": ["pytest_plugin", "isolation", "model_server", "profiles", "fakes", "streams"],
}
"""Sub-packages, the outermost first: each may import those after it, and whatever is no layer."""


@pytest.mark.parametrize("package", LAYERS)
def test_inner_layers_do_not_import_outer_ones(package: str) -> None:
    layers = LAYERS[package]
    wrong = []
    for name, path in MODULES.items():
        if name.parts[1] != package or (own := name.parts[2].removesuffix(".py")) not in layers:
            continue
        for other in imported(path):
            parts = other.split(".")
            outer = parts[:2] == ["dragoman", package] and parts[2] in layers[: layers.index(own)]
            wrong += [f"{name} imports {other}"] if outer else []
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """Not even in a circle, and not later either: what is imported inside of a function counts."""
    names = {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for name, path in MODULES.items()}
    graph = {name: known_modules(path, names) - {name} for name, path in names.items() if part_of(name) in ACYCLIC}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


ACYCLIC = {"client", "cli", "protocol", "sdk", "testkit"}


def part_of(module: str) -> str:
    return module.split(".")[1]


def known_modules(path: Path, names: Mapping[str, Path]) -> set[str]:
    """Return the modules that ``path`` imports, or imports from."""
    return {
        next(name for name in (other, other.rpartition(".")[0]) if name in names or "." not in name)
        for other in imported(path)
        if other.startswith("dragoman.") and {other, other.rpartition(".")[0]} & set(names)
    }


SDK_FRONT = {
    "__init__",
    "account",
    "detection",
    "failures",
    "fields",
    "jsonrpc",
    "parsing",
    "registration",
    "run",
    "skills",
}


def sdk_part(module: str) -> str:
    """Return the part of ``dragoman.sdk.…`` that a module is, or is in."""
    return (*module.split(".")[2:], "__init__")[0]


def test_the_parts_of_the_sdk_import_in_one_direction() -> None:
    names = {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for name, path in MODULES.items()}
    sdk = {name: path for name, path in names.items() if name.startswith("dragoman.sdk")}
    assert {sdk_part(name) for name in sdk} == {*MAY_IMPORT_IN_SDK, *SDK_FRONT}
    wrong = []
    for name, path in sdk.items():
        own = sdk_part(name)
        others = {sdk_part(other) for other in imported(path) if other.startswith("dragoman.sdk.")} - {own}
        if own in SDK_FRONT:
            wrong += [f"{name} imports {other}" for other in others if other in SDK_FRONT]
        else:
            wrong += [f"{name} imports {other}" for other in others - MAY_IMPORT_IN_SDK[own]]
    assert wrong == []
    parts = list(MAY_IMPORT_IN_SDK)
    later = [
        (part, other) for part in parts for other in MAY_IMPORT_IN_SDK[part] if parts.index(other) > parts.index(part)
    ]
    assert later == []


def package_in(package: str, module: str) -> str:
    """Return the part of ``dragoman.<package>.…`` that a module is, or is in."""
    return (*module.removeprefix(f"dragoman.{package}").split(".")[1:], "__init__")[0]


def modules_of(package: str) -> dict[str, Path]:
    """Return the modules of ``dragoman.<package>`` by their names."""
    names = {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for name, path in MODULES.items()}
    return {name: path for name, path in names.items() if f"{name}.".startswith(f"dragoman.{package}.")}


def test_the_packages_of_the_router_import_in_one_direction() -> None:
    router = modules_of("router")
    assert {package_in("router", name) for name in router} == {*MAY_IMPORT_IN_ROUTER, *ROUTER_FRONT}
    wrong = []
    for name, path in router.items():
        own = package_in("router", name)
        others = {package_in("router", other) for other in imported(path) if other.startswith("dragoman.router.")}
        allowed = MAY_IMPORT_IN_ROUTER.get(own) or FRONT_MAY_IMPORT.get(own) or set()
        wrong += [f"{name} imports {other}" for other in others - {own} - allowed]
    assert wrong == []
    packages = list(MAY_IMPORT_IN_ROUTER)
    assert all(packages.index(other) < packages.index(own) for own in packages for other in MAY_IMPORT_IN_ROUTER[own])


def test_the_router_serves_grpc_in_one_package_and_dials_in_one_module() -> None:
    servicers, dialling, know_grpc = set(), set(), set()
    for name, path in modules_of("router").items():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        if any(isinstance(node, ast.ClassDef) and node.name.endswith("Servicer") for node in nodes):
            servicers.add(package_in("router", name))
        called = {node.id for node in nodes if isinstance(node, ast.Name)}
        called |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        if called & {"open_channel", "insecure_channel", "secure_channel"}:
            dialling.add(name)
        if any(other.split(".")[0] == "grpc" for other in imported(path)):
            know_grpc.add(name)
    assert servicers == {"api"}
    assert dialling == {"dragoman.router.adapters.channel"}
    assert know_grpc == KNOW_GRPC


KNOW_GRPC = {
    "dragoman.router.adapters.channel",
    "dragoman.router.runs.upstream",
}
"""Modules that know how calls end and fail in gRPC. All but the channel are to lose that."""


def test_what_is_pure_in_the_router_does_no_input_or_output() -> None:
    impure = {"asyncio", "grpc", "os", "random", "socket", "subprocess", "time"}
    wrong = []
    for name, path in modules_of("router").items():
        if package_in("router", name) in {"model", "policy"} and name != "dragoman.router.model.tasks":
            wrong += [f"{name} imports {other}" for other in imported(path) if other.split(".")[0] in impure]
    assert wrong == []
