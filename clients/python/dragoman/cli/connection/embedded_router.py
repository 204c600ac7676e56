"""The routers of this program: the embedded one of ``dragoman run``, and that of ``dragoman serve`` with its policy.

No other module of the command line imports `dragoman.router`, except for `early`, which imports a small part of it.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.command_error import CommandError
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from dragoman.protocol.addresses import AddressError, parse_address
from dragoman.protocol.importing import importing
from dragoman.protocol.logs import configure_logs
from dragoman.router.config import RouterConfig
from dragoman.router.launching import Launching, open_launching
from dragoman.router.starting import Starting
from msgspec.structs import replace

if TYPE_CHECKING:
    from dragoman.protocol.errors import DragomanError
    from dragoman.router.api.webhooks import SignedWebhook
    from dragoman.router.app import Router
    from dragoman.router.storage.database import StoreError
    from dragoman.v1 import adapter_pb2

__all__ = ["RouterConfig", "embedded_router", "policy_objections", "serve", "try_webhooks"]


@contextlib.asynccontextmanager
async def embedded_router(
    *, adapter: str = "", starting: Starting | None = None, debug: bool = False
) -> AsyncIterator[str]:
    """Run a router in this process, on a private socket; yields its address.

    The processes that it started have ended when the block ends.

    Args:
        adapter: the adapter that is used first; it starts while the router is imported.
        starting: what has begun to start adapters, if that was opened.
        debug: show its log.

    Raises:
        CommandError: its directories cannot be created, or the run log cannot be used.
    """
    configure_logs("console", level="info" if debug else "critical")
    async with contextlib.AsyncExitStack() as stack:
        try:
            config = RouterConfig(embedded=True, secrets=_secrets())
            launching = stack.enter_context(open_launching(config, starting))
            launching.prepare(adapter)
            # Everything else comes while the adapter starts.
            router = await stack.enter_async_context(_router(config, launching))
        except AddressError as error:
            raise CommandError(ErrorReport(str(error), exit_code=EXIT_USAGE)) from error
        except OSError as error:
            raise CommandError(_no_directory(error)) from error
        yield router.addresses[0]


@contextlib.asynccontextmanager
async def _router(config: RouterConfig, launching: Launching) -> "AsyncIterator[Router]":
    """Run a router on a private socket."""
    with importing():
        from dragoman.router.app import Router  # noqa: PLC0415 - the adapter starts meanwhile
        from dragoman.router.storage.database import StoreError  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory(prefix="dragoman-", dir=_short_directory()) as folder:
        router = Router(replace(config, listen=(f"unix:{folder}/router.sock",)), launching)
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(router)
            except StoreError as error:
                raise CommandError(_no_log(error)) from error
            yield router


def _secrets() -> Path | None:
    """Return the directory of the secrets of stored agents, as for ``dragoman serve``."""
    named = os.environ.get("DRAGOMAN_SECRETS", "")
    return Path(named) if named else None


def _no_directory(error: OSError) -> ErrorReport:
    return ErrorReport(
        f"cannot create the directory {error.filename}: {error.strerror}" if error.filename else str(error),
        hint="set XDG_STATE_HOME to a writable directory, or give 'dragoman serve' a --state-dir",
        exit_code=EXIT_USAGE,
    )


def _no_log(error: "StoreError", run_log: str = "") -> ErrorReport:
    hint = "set XDG_STATE_HOME to another directory, or give 'dragoman serve' another --run-log or --state-dir"
    if "full" in str(error):
        hint = f"free disk space, or {hint}"
    if "://" in run_log:
        hint = "" if error.is_lasting else "check that the server of --run-log is running and accepts this user"
    return ErrorReport(str(error), hint=hint, exit_code=EXIT_FAILED)


def _short_directory() -> str | None:
    """Return the parent of temporary directories: the default, unless its path is too long for a socket."""
    try:
        parse_address(f"unix:{tempfile.gettempdir()}/dragoman-XXXXXXXX/router.sock")
    except AddressError:
        return "/tmp"  # noqa: S108 - a new directory of mode 0700 is created in it
    return None


def serve(config: RouterConfig) -> None:
    """Run a router until SIGTERM or SIGINT, and print its addresses to standard output.

    Raises:
        AddressError: an address is in use, or would need TLS.
        CommandError: its directories cannot be created, or its policy or the run log cannot be used.
        OSError: standard output cannot be written.
    """
    with importing():
        from dragoman.router.app import run_router  # noqa: PLC0415 - the larger part of the router; see above
        from dragoman.router.storage.database import StoreError  # noqa: PLC0415 - as above

    if config.policy is not None:
        policy_objections(config.policy, None)
    if config.webhooks is not None:
        _read_webhooks(config.webhooks)
    is_ready = False

    def announce(addresses: Sequence[str]) -> None:
        nonlocal is_ready
        is_ready = True
        _announce(addresses)

    try:
        run_router(config, on_ready=announce, on_detected=_report if _is_for_people(config) else None)
    except OSError as error:
        if is_ready:
            raise
        raise CommandError(_no_directory(error)) from error
    except StoreError as error:
        raise CommandError(_no_log(error, config.run_log)) from error


def _is_for_people(config: RouterConfig) -> bool:
    """Return whether the log on standard error is for people."""
    return config.log_format == "console" or (config.log_format == "auto" and sys.stderr.isatty())


def _report(found: "Sequence[adapter_pb2.Detection]") -> None:
    from dragoman.cli.display.detections import report  # noqa: PLC0415 - protobuf; see above
    from dragoman.cli.display.printing import print_lines  # noqa: PLC0415 - as above

    with contextlib.suppress(OSError):  # standard error is closed
        print_lines(report(found, time.time()), stream=sys.stderr)


def _announce(addresses: Sequence[str]) -> None:
    sys.stdout.write("".join(f"listening on {address}\n" for address in addresses))
    sys.stdout.flush()


def try_webhooks(file: Path, name: str) -> list[tuple[str, str]]:
    """Send a test event to the webhooks of a file; return their names, and why one did not take it.

    Args:
        file: the file.
        name: the only one that gets it; empty for all.

    Raises:
        CommandError: the file is invalid, or has no webhook of that name.
    """
    from dragoman.router.api.webhooks import send_tests  # noqa: PLC0415 - only where there are webhooks

    hooks = _read_webhooks(file)
    chosen = [signed for signed in hooks if name in {"", signed.hook.name}]
    if not chosen:
        hint = f"it has {', '.join(signed.hook.name for signed in hooks)}"
        raise CommandError(ErrorReport(f"{file} has no webhook {name!r}", hint=hint, exit_code=EXIT_USAGE))
    return asyncio.run(send_tests(chosen, time.time()))


def _read_webhooks(file: Path) -> "Sequence[SignedWebhook]":
    from dragoman.router.api.webhooks import read_webhooks  # noqa: PLC0415 - as above
    from dragoman.router.policy.webhooks import WebhookError  # noqa: PLC0415 - as above

    try:
        return read_webhooks(file)
    except WebhookError as error:
        hint = "the guide on webhooks documents the file"
        raise CommandError(ErrorReport(f"webhooks {file}: {error}", hint=hint, exit_code=EXIT_USAGE)) from error


def policy_objections(file: Path, request: "adapter_pb2.ExecuteRequest | None") -> "DragomanError | None":
    """Return why a router with this policy would deny a request; ``None`` if it would not, or there is no request.

    Raises:
        CommandError: the policy cannot be read, or is invalid.
    """
    from dragoman.protocol.errors import DragomanError  # noqa: PLC0415 - not before an adapter is started; see above
    from dragoman.router.api.policy_file import OperatorPolicyFile  # noqa: PLC0415 - only where there is a policy
    from dragoman.router.policy.operator_policy import PolicyError  # noqa: PLC0415 - as above

    try:
        policy = OperatorPolicyFile(file)
    except PolicyError as error:
        hint = "the guide on policies documents the file"
        raise CommandError(ErrorReport(f"policy {file}: {error}", hint=hint, exit_code=EXIT_USAGE)) from error
    if request is None:
        return None
    try:
        policy.check(request, request.adapter)
    except DragomanError as error:
        return error
    return None
