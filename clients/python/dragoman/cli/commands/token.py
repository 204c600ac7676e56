"""``dragoman token``: the user's token, and tokens with scopes."""

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import json_option
from dragoman.cli.display.printing import print_lines
from dragoman.cli.display.style import Segment
from dragoman.cli.display.table import table
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_OK, EXIT_USAGE
from dragoman.cli.usage import wrong_usage
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.caller import SCOPES
from dragoman.protocol.private import make_token
from dragoman.protocol.tokens import (
    StoredToken,
    TokenFileError,
    create_token,
    revoke_token,
    stored_tokens,
    tokens_path,
)

_DAY_S = 86400.0
_SCOPE_HELP = (
    "What the token is for; " + "; ".join(f"{name}: {what}" for name, what in SCOPES.items()) + ". Repeatable."
)
_EXAMPLES = """\b
Examples:
  dragoman token create ci --scope run --adapter claude_code --days 30
  DRAGOMAN_TOKEN=dgm_... dragoman runs --router router.example:7777
"""


@click.group("token", invoke_without_command=True)
@click.pass_context
@wrong_usage(AddressError)
def token_command(context: click.Context) -> int | None:
    """Print this user's token, which servers require over TCP; or create, list and revoke tokens with scopes.

    The user's token may do everything. It is created on first use. This program and Python clients read it by
    themselves, or use what DRAGOMAN_TOKEN holds.
    """
    if context.invoked_subcommand is not None:
        return None
    click.echo(make_token())
    return EXIT_OK


@token_command.command("create", epilog=_EXAMPLES)
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(list(SCOPES)), help=_SCOPE_HELP)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="TYPE",
    default=("*",),
    help="Adapters that it may use: types, or patterns such as 'claude*'. Repeatable. Default: all.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=36500),
    metavar="N",
    help="Days until it expires. Default: never.",
)
@wrong_usage(TokenFileError)
def _create_command(name: str, scopes: tuple[str, ...], adapters: tuple[str, ...], days: float | None) -> int:
    """Create the token NAME and print it.

    It is shown only now; routers of this user have its digest, from the next call on.
    """
    click.echo(create_token(tokens_path(), name, scopes, adapters, None if days is None else days * _DAY_S))
    return EXIT_OK


@token_command.command("list")
@json_option("Print one line of JSON per token, without its digest.")
@wrong_usage(TokenFileError)
def _list_command(as_json: bool) -> int:
    """List tokens with scopes, oldest first."""
    tokens = stored_tokens(tokens_path())
    if as_json:
        sys.stdout.write("".join(f"{json.dumps(_facts(token))}\n" for token in tokens))
    else:
        print_lines(_table(tokens, time.time()))
    return EXIT_OK


@token_command.command("revoke")
@click.argument("name", metavar="NAME|ID")
@wrong_usage(TokenFileError)
def _revoke_command(name: str) -> int:
    """Revoke a token: routers refuse it from the next call on. Runs that it started go on."""
    revoke_token(tokens_path(), name)
    return EXIT_OK


@token_command.command("keys")
@wrong_usage(AddressError)
def _keys_command() -> int:
    """Print the public keys of the tokens that routers issue for runs, as a JSON Web Key Set.

    DRAGOMAN_TRUST names the trust file, whose run_tokens.key is the private key.
    """
    from dragoman.protocol.access import named_trust  # noqa: PLC0415 - the other commands do without

    trust = named_trust()
    rule = trust.current().run_tokens if trust is not None else None
    if rule is None:
        raise CommandError(ErrorReport("the trust file (DRAGOMAN_TRUST) names no key", exit_code=EXIT_USAGE))
    from dragoman.protocol.run_tokens import RunTokens  # noqa: PLC0415 - needs an extra

    click.echo(json.dumps(RunTokens(rule).public_keys(), indent=1))
    return EXIT_OK


def _facts(token: StoredToken) -> dict[str, object]:
    facts: dict[str, object] = {
        "id": token.id,
        "name": token.name,
        "scopes": list(token.scopes),
        "adapters": list(token.adapters),
        "createdAt": _time(token.created_at),
    }
    return facts if token.expires_at is None else {**facts, "expiresAt": _time(token.expires_at)}


def _table(tokens: Sequence[StoredToken], now: float) -> list[list[Segment]]:
    rows = [
        [token.name, token.id, ", ".join(token.scopes), ", ".join(token.adapters), _expiry(token, now)]
        for token in tokens
    ]
    empty = "no tokens with scopes; 'dragoman token create' makes one"
    return table(("TOKEN", "ID", "SCOPES", "ADAPTERS", "EXPIRES"), rows, empty=empty)


def _expiry(token: StoredToken, now: float) -> str:
    if token.expires_at is None:
        return "never"
    return f"expired {_time(token.expires_at)}" if token.is_expired(now) else _time(token.expires_at)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
