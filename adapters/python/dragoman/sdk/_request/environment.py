"""The environment of an agent: an allow list of what we inherit, then the run's variables, then the caller's.

Later layers win: inherited < ``PREFIX_*`` < the adapter's own < ``config.env`` < the request's ``env``
< the run's marker. Nothing else gets in: the environment of a service holds secrets that no
model-driven program should see, and variables that change how programs work.
"""

import re
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from dragoman.guard.tree import MARKER
from dragoman.protocol.redaction.patterns import is_secret_entry
from dragoman.protocol.redaction.sources import is_searchable, url_secrets, variable_secrets
from msgspec import Struct, field

DEFAULT_PREFIX: Final = "DRAGOMAN"
"""The prefix of the run's variables when the caller has no brand."""

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""``PATH`` when none is inherited or set. Unlike ``os.defpath`` it does not search the working directory."""

_INHERITED: Final = frozenset(
    (
        # Who and where we are. HOME leads to the agent's login; without it there is none.
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP"),
        # How to talk to people.
        *("LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR"),
        # Where agents, and what they install, keep their things.
        "XDG_*",
        # The way out of the building: proxies, and the authorities that its certificates come from.
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NIX_SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE"),
        # Sockets, not secrets: git over ssh, and the key ring in which some agents keep their login.
        *("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS"),
        # Where version managers keep the programs that PATH names, and an agent's tools need.
        *("NVM_DIR", "NVM_BIN", "FNM_DIR", "FNM_MULTISHELL_PATH", "VOLTA_HOME", "PNPM_HOME", "N_PREFIX"),
        *("BUN_INSTALL", "DENO_INSTALL", "ASDF_DIR", "ASDF_DATA_DIR", "PYENV_ROOT", "RBENV_ROOT"),
        *("CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOROOT", "JAVA_HOME", "SDKMAN_DIR", "ANDROID_HOME"),
        *("HOMEBREW_PREFIX", "HOMEBREW_CELLAR", "HOMEBREW_REPOSITORY", "NIX_PATH", "NIX_PROFILES"),
    )
)
# Not there on purpose: VIRTUAL_ENV, PYTHON*, NODE_OPTIONS, LD_* (the server's own, and ways to run its code),
# EDITOR and PAGER (no one is there to leave them), CI (changes what tools do).

_PREFIX: Final = re.compile("[A-Z][A-Z0-9_]{0,63}")
_RESERVED_PREFIXES: Final = frozenset(
    (
        # Agents, and those who sell their models: PREFIX_API_KEY would be read as theirs.
        *("AIDER", "AMP", "ANTHROPIC", "AUGMENT", "AZURE", "AWS", "BEDROCK", "CEREBRAS", "CLAUDE"),
        *("CLAUDECODE", "CLINE", "CODEX", "COHERE", "COPILOT", "CRUSH", "CURSOR", "DEEPSEEK", "FACTORY"),
        *("FIREWORKS", "GEMINI", "GOOGLE", "GOOSE", "GROK", "GROQ", "HERMES", "HF", "HUGGINGFACE", "KIMI"),
        *("MINIMAX", "MISTRAL", "MOONSHOT", "OLLAMA", "OPENAI", "OPENCLAW", "OPENCODE", "OPENROUTER"),
        *("PERPLEXITY", "PI", "QWEN", "TOGETHER", "VERTEX", "XAI", "ZAI"),
        # Where code is kept: their tokens are given to runs, too.
        *("GITHUB", "GH", "GITLAB"),
        # Programs and systems that read variables of their own.
        *("BUN", "CARGO", "CI", "CURL", "DBUS", "DENO", "DOCKER", "DYLD", "GIT", "GLIBC", "GO", "HOME"),
        *("HTTP", "HTTPS", "JAVA", "KUBERNETES", "LANG", "LC", "LD", "MALLOC", "NIX", "NODE", "NO", "NPM"),
        *("PATH", "PERL", "PIP", "PYTHON", "REQUESTS", "RUBY", "RUST", "SHELL", "SSH", "SSL", "SYSTEMD"),
        *("TERM", "TMP", "TMPDIR", "USER", "UV", "VIRTUAL", "XDG"),
    )
)
_NODE_CACHE: Final = "NODE_COMPILE_CACHE"
_NAME: Final = re.compile(r"[^=\0]+")
_PLAIN_NAME: Final = re.compile(r"\w+")


class EnvironmentInputs(Struct, frozen=True):
    """What a run says about its environment. None and empty text both mean absent."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """What every run has, by the names that come after the caller's prefix. What is empty is not set."""

    auth_token: str | None = None
    """Becomes ``PREFIX_API_KEY``."""
    env_prefix: str | None = None
    """The caller's brand, as ``validate_prefix`` allows; None means ``DRAGOMAN``."""
    config_env: Mapping[str, str] = field(default_factory=dict)
    """``config.env``."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The request's ``env``."""
    marker: str | None = None
    """Makes the run's processes findable; see ``dragoman.guard``."""
    secrets: tuple[str, ...] = ()
    """What is secret in the request, the environment or not; see ``request_secrets``."""


def normalise_prefix(prefix: str | None) -> str:
    """Return the prefix as it stands before ``_AGENT_ID``: the default if absent, no ``_`` at its end."""
    return (prefix or DEFAULT_PREFIX).rstrip("_")


def validate_prefix(prefix: str) -> str | None:
    """Return what is wrong with a caller's prefix, as a sentence for its author; None if nothing is."""
    if not _PREFIX.fullmatch(prefix):
        return "must be an upper-case letter, then up to 63 upper-case letters, digits and underscores"
    name = normalise_prefix(prefix)
    for reserved in _RESERVED_PREFIXES:
        if name == reserved or name.startswith(f"{reserved}_"):
            return f"{reserved} belongs to another program, which would take the run's variables for its own"
    return None


def validate_variables(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first variable that no program can be started with, and why; None if there is none."""
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            return name, "a variable's name must not be empty, nor contain '=' or a zero byte"
        if "\0" in value:
            return name, "a variable's value must not contain a zero byte"
    return None


def run_variables(inputs: EnvironmentInputs) -> dict[str, str]:
    """Return the variables that every run has, under the caller's prefix. What is absent is not set."""
    prefix = normalise_prefix(inputs.env_prefix)
    values = {**inputs.variables, "API_KEY": inputs.auth_token}
    return {f"{prefix}_{name}": value for name, value in values.items() if value}


def inherited_variables(
    inherited: Mapping[str, str],
    *,
    prefix: str | None = None,
    strip: Collection[str] = (),
    allow: Collection[str] = (),
) -> dict[str, str]:
    """Return what an agent may inherit.

    Args:
        inherited: Our own environment.
        prefix: The caller's. Nothing that begins with it or with ``DRAGOMAN_`` passes: those are our
            own settings, or another run's variables.
        strip: Variables that must not pass, above all those by which an agent notices that it runs
            inside another one. Wins over everything else.
        allow: Variables that this agent needs, besides the common ones.

    ``strip`` and ``allow`` hold names or patterns (``CLAUDE_CODE_*``). A variable whose name says that
    it is a secret passes only if ``allow`` holds its very name: a pattern cannot know what it lets in.
    """
    ours = (f"{normalise_prefix(prefix)}_", f"{DEFAULT_PREFIX}_")
    named = frozenset(allow)
    stripped = _matcher(strip)
    allowed = _matcher([*_INHERITED, *allow])
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith(ours)
        and not stripped(name)
        and (name in named or (allowed(name) and not is_secret_entry(name, value)))
    }


def build_environment(
    inputs: EnvironmentInputs,
    inherited: Mapping[str, str],
    *,
    strip: Collection[str] = (),
    allow: Collection[str] = (),
    plan_env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the whole environment of a run's child process.

    Args:
        inputs: The run's part of it. ``PREFIX_API_KEY`` is its ``auth_token`` unless ``config_env`` or
            ``env`` sets that variable; they may set any but the marker.
        inherited: Our own environment, as ``inherited_variables`` takes it with ``strip`` and ``allow``.
        strip: See there.
        allow: See there.
        plan_env: What the adapter sets for its agent.
    """
    environment = {
        **inherited_variables(inherited, prefix=inputs.env_prefix, strip=strip, allow=allow),
        **run_variables(inputs),
        **(plan_env or {}),
        **inputs.config_env,
        **inputs.env,
    }
    if not environment.get("PATH"):
        environment["PATH"] = DEFAULT_PATH
    environment.pop(MARKER, None)
    if inputs.marker:
        environment[MARKER] = inputs.marker
    return environment


def node_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what lets a program for Node.js find the code that it compiled in an earlier run.

    By itself it looks below ``TMPDIR``, which is each run's own.
    """
    cache = inherited.get("XDG_CACHE_HOME") or f"{inherited.get('HOME') or Path.home()}/.cache"
    return {_NODE_CACHE: inherited.get(_NODE_CACHE) or f"{cache}/dragoman/node"}


def secret_values(inputs: EnvironmentInputs, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the secrets that a run has, each once, for a ``Redactor``.

    Those of its request, by the broad rule of ``is_caller_secret``; of what is inherited or set by the adapter,
    every value under a name that says it is a secret. Plain words are not secrets, except as the token.

    Args:
        inputs: The run's part.
        environment: The child's whole environment, for what is inherited or set by the adapter.
    """
    found = [inputs.auth_token] if inputs.auth_token else []
    found += filter(is_searchable, inputs.secrets)
    for layer in (inputs.config_env, inputs.env):
        found += filter(is_searchable, variable_secrets(layer))
    for name, value in (environment or {}).items():
        if is_secret_entry(name, value) and is_searchable(value):
            found.append(value)
        found += url_secrets(value)
    return tuple(dict.fromkeys(found))


def _matcher(patterns: Collection[str]) -> Callable[[str], bool]:
    names = frozenset(patterns)
    globs = [pattern for pattern in patterns if not _PLAIN_NAME.fullmatch(pattern)]
    return lambda name: name in names or any(fnmatchcase(name, glob) for glob in globs)
