"""What an agent finds in its environment, under three brands, and what it never finds there."""

import pytest
from dragoman.guard.tree import MARKER
from dragoman.protocol.redaction.sources import variable_secrets
from dragoman.sdk._request.environment import (
    DEFAULT_PATH,
    EnvironmentInputs,
    build_environment,
    inherited_variables,
    node_variables,
    normalise_prefix,
    run_variables,
    secret_values,
    validate_prefix,
    validate_variables,
)
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

EVERYTHING = EnvironmentInputs(
    variables={
        "RUN_ID": "run-1",
        "AGENT_ID": "agent-1",
        "COMPANY_ID": "company-1",
        "API_URL": "http://127.0.0.1:3100/api",
        "TASK_ID": "task-1",
        "WAKE_REASON": "issue_assigned",
        "WAKE_COMMENT_ID": "comment-1",
        "APPROVAL_ID": "approval-1",
        "APPROVAL_STATUS": "approved",
        "LINKED_ISSUE_IDS": "issue-1,issue-2",
    },
    auth_token="run-token-1",
    marker="marker-1",
)

# The tables of the three guides: suffix -> value.
INJECTED = {
    "AGENT_ID": "agent-1",
    "COMPANY_ID": "company-1",
    "API_URL": "http://127.0.0.1:3100/api",
    "RUN_ID": "run-1",
    "TASK_ID": "task-1",
    "WAKE_REASON": "issue_assigned",
    "WAKE_COMMENT_ID": "comment-1",
    "APPROVAL_ID": "approval-1",
    "APPROVAL_STATUS": "approved",
    "LINKED_ISSUE_IDS": "issue-1,issue-2",
    "API_KEY": "run-token-1",
}
BRANDS = ["PAPERCLIP", "GALYARDER", "COHALO"]


@pytest.mark.parametrize("brand", BRANDS)
def test_every_variable_is_injected_under_the_callers_prefix(brand: str) -> None:
    inputs = replace(EVERYTHING, env_prefix=brand)
    assert build_environment(inputs, {}) == {
        **{f"{brand}_{suffix}": value for suffix, value in INJECTED.items()},
        "PATH": DEFAULT_PATH,
        MARKER: "marker-1",
    }


@pytest.mark.parametrize("brand", BRANDS)
def test_what_is_absent_is_not_set(brand: str) -> None:
    assert build_environment(EnvironmentInputs(env_prefix=brand), {"PATH": "/bin"}) == {"PATH": "/bin"}
    empty = EnvironmentInputs({"RUN_ID": "r", "TASK_ID": ""}, auth_token="", env_prefix=brand)
    assert run_variables(empty) == {f"{brand}_RUN_ID": "r"}


@pytest.mark.parametrize("prefix", [None, "", "DRAGOMAN", "DRAGOMAN_"])
def test_without_a_brand_the_prefix_is_our_own(prefix: str | None) -> None:
    assert run_variables(EnvironmentInputs({"RUN_ID": "r"}, env_prefix=prefix)) == {"DRAGOMAN_RUN_ID": "r"}


def test_later_layers_win() -> None:
    layers = ["inherited", "run", "plan", "config", "request"]

    def build(top: int) -> str:
        inputs = EnvironmentInputs(
            variables={"WAKE_REASON": "run"} if top >= 1 else {},
            env_prefix="XDG_A",  # a prefix under which something could be inherited, were it not ours
            config_env={"XDG_A_WAKE_REASON": "config"} if top >= 3 else {},
            env={"XDG_A_WAKE_REASON": "request"} if top >= 4 else {},
        )
        plan_env = {"XDG_A_WAKE_REASON": "plan"} if top >= 2 else {}
        inherited = {"XDG_A_WAKE_REASON": "inherited", "PATH": "/bin"}
        return build_environment(inputs, inherited, plan_env=plan_env).get("XDG_A_WAKE_REASON", "")

    assert [build(top) for top in range(5)] == ["", *layers[1:]]


def test_an_explicit_api_key_wins_over_the_token() -> None:
    own = {"PAPERCLIP_API_KEY": "mine"}
    inputs = EnvironmentInputs(auth_token="token", env_prefix="PAPERCLIP")
    assert build_environment(inputs, {})["PAPERCLIP_API_KEY"] == "token"
    for explicit in (replace(inputs, config_env=own), replace(inputs, env=own)):
        assert build_environment(explicit, {})["PAPERCLIP_API_KEY"] == "mine"


def test_the_marker_cannot_be_overridden() -> None:
    forged = {MARKER: "forged"}
    inputs = EnvironmentInputs(config_env=forged, env=forged, marker="true")
    assert build_environment(inputs, forged, plan_env=forged)[MARKER] == "true"
    unmarked = replace(inputs, marker=None)
    assert MARKER not in build_environment(unmarked, forged, plan_env=forged, allow=[MARKER])


@pytest.mark.parametrize("inherited", [{}, {"PATH": ""}])
def test_there_is_always_a_path_and_never_the_working_directory_in_it(inherited: dict[str, str]) -> None:
    path = build_environment(EnvironmentInputs(), inherited)["PATH"]
    assert path == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert build_environment(EnvironmentInputs(env={"PATH": "/x"}), inherited)["PATH"] == "/x"


COMMON = """
    PATH HOME USER LOGNAME SHELL TMPDIR TMP TEMP LANG LANGUAGE LC_ALL LC_CTYPE TZ TERM COLORTERM NO_COLOR
    XDG_CONFIG_HOME XDG_RUNTIME_DIR HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy
    all_proxy
    SSL_CERT_FILE SSL_CERT_DIR NIX_SSL_CERT_FILE NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO
    AWS_CA_BUNDLE SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS NVM_DIR NVM_BIN FNM_DIR FNM_MULTISHELL_PATH VOLTA_HOME
    PNPM_HOME N_PREFIX BUN_INSTALL DENO_INSTALL ASDF_DIR ASDF_DATA_DIR PYENV_ROOT RBENV_ROOT CARGO_HOME RUSTUP_HOME
    GOPATH GOROOT JAVA_HOME SDKMAN_DIR ANDROID_HOME HOMEBREW_PREFIX HOMEBREW_CELLAR HOMEBREW_REPOSITORY NIX_PATH
    NIX_PROFILES
"""


@pytest.mark.parametrize("name", COMMON.split())
def test_common_variables_are_inherited(name: str) -> None:
    assert inherited_variables({name: "value"}) == {name: "value"}
    assert inherited_variables({name: "value"}, strip=[name]) == {}


@pytest.mark.parametrize(
    "name",
    [
        *("DATABASE_URL", "PGPASSWORD", "AWS_PROFILE", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SESSION_COOKIE"),
        *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XDG_SESSION_COOKIE", "LC_SECRET", "KUBERNETES_SERVICE_HOST"),
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "NODE_OPTIONS", "EDITOR", "CI"),
        *("DRAGOMAN_LISTEN", "DRAGOMAN_RUN_ID", "PAPERCLIP_API_URL", "CLAUDECODE", "path", "MYHOME"),
    ],
)
def test_nothing_else_is_inherited(name: str) -> None:
    assert inherited_variables({name: "value"}) == {}


@pytest.mark.parametrize(
    ("name", "allow", "passes"),
    [
        ("CLAUDE_CONFIG_DIR", ["CLAUDE_*"], True),
        ("CLAUDE_CONFIG_DIR", ["CLAUDE_CONFIG_DIR"], True),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", ["CLAUDE_*"], True),
        ("CLAUDE_CODE_OAUTH_TOKEN", ["CLAUDE_*"], False),
        ("CLAUDE_CODE_OAUTH_TOKEN", ["CLAUDE_CODE_OAUTH_TOKEN"], True),
        ("ANTHROPIC_API_KEY", ["*"], False),
        ("ANTHROPIC_API_KEY", ["ANTHROPIC_API_KEY"], True),
        ("DRAGOMAN_TOKEN", ["DRAGOMAN_TOKEN"], False),
        ("PAPERCLIP_API_KEY", ["PAPERCLIP_API_KEY"], False),
    ],
)
def test_secrets_pass_only_under_the_very_name_allowed(name: str, allow: list[str], passes: bool) -> None:
    inherited = {name: "4096" if "MAX" in name else "value"}
    assert inherited_variables(inherited, prefix="PAPERCLIP", allow=allow) == (inherited if passes else {})


def test_stripping_wins_over_allowing_but_not_over_the_caller() -> None:
    strip = ["CLAUDECODE", "CLAUDE_CODE_*"]
    nested = {"CLAUDECODE": "1", "CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_CONFIG_DIR": "/c", "PATH": "/bin"}
    passed = build_environment(EnvironmentInputs(), nested, strip=strip, allow=[*nested, "CLAUDE_*"])
    assert passed == {"CLAUDE_CONFIG_DIR": "/c", "PATH": "/bin"}
    asked = build_environment(EnvironmentInputs(env={"CLAUDECODE": "1"}), nested, strip=strip)
    assert asked["CLAUDECODE"] == "1"


@pytest.mark.parametrize("prefix", [*BRANDS, "DRAGOMAN", "A", "MY_BRAND", "ACME_", "X9", "GITHUBBER", "PIPER"])
def test_good_prefixes(prefix: str) -> None:
    assert validate_prefix(prefix) is None


@pytest.mark.parametrize("prefix", ["", "paperclip", "9X", "_X", "A-B", "A B", "É", "A\n", "X" * 65])
def test_prefixes_of_the_wrong_form(prefix: str) -> None:
    assert "upper-case" in (validate_prefix(prefix) or "")


OTHERS = """
    AIDER AMP ANTHROPIC AUGMENT AZURE AWS BEDROCK CEREBRAS CLAUDE CLAUDECODE CLINE CODEX COHERE COPILOT CRUSH CURSOR
    DEEPSEEK FACTORY FIREWORKS GEMINI GOOGLE GOOSE GROK GROQ HERMES HF HUGGINGFACE KIMI MINIMAX MISTRAL MOONSHOT
    OLLAMA
    OPENAI OPENCLAW OPENCODE OPENROUTER PERPLEXITY PI QWEN TOGETHER VERTEX XAI ZAI GITHUB GH GITLAB BUN CARGO CI CURL
    DBUS DENO DOCKER DYLD GIT GLIBC GO HOME HTTP HTTPS JAVA KUBERNETES LANG LC LD MALLOC NIX NODE NO NPM PATH PERL PIP
    PYTHON REQUESTS RUBY RUST SHELL SSH SSL SYSTEMD TERM TMP TMPDIR USER UV VIRTUAL XDG
"""


@pytest.mark.parametrize(
    ("prefix", "owner"),
    [
        *((name, name) for name in OTHERS.split()),
        ("CLAUDE_CODE", "CLAUDE"),
        ("OPENAI_", "OPENAI"),
        ("XDG_A", "XDG"),
    ],
)
def test_prefixes_of_others_are_refused_by_name(prefix: str, owner: str) -> None:
    assert (validate_prefix(prefix) or "").startswith(f"{owner} belongs to another")


def test_a_trailing_underscore_makes_no_difference() -> None:
    assert normalise_prefix("ACME_") == normalise_prefix("ACME") == "ACME"


@pytest.mark.parametrize(
    ("environment", "name"),
    [({"": "x"}, ""), ({"A=B": "x"}, "A=B"), ({"A\0": "x"}, "A\0"), ({"OK": "y", "A": "x\0"}, "A")],
)
def test_variables_that_cannot_be_set_are_found(environment: dict[str, str], name: str) -> None:
    problem = validate_variables(environment)
    assert problem is not None
    assert problem[0] == name


def test_other_variables_can_be_set() -> None:
    assert validate_variables({"A": "", "lower.dots-dashes": "=\n", "É": "é"}) is None


def test_secrets_are_collected_from_every_layer_once() -> None:
    inputs = EnvironmentInputs(
        auth_token="run-token",
        env_prefix="PAPERCLIP",
        config_env={"DB_PASSWORD": "hunter22", "PORT": "3000", "GH_TOKEN": "gh-token"},
        env={"GH_TOKEN": "gh-token", "MAX_TOKENS": "100000", "USE_TOKEN": "enabled", "EMPTY_KEY": ""},
    )
    inherited = {"HTTPS_PROXY": "http://user:proxypass@proxy:3128", "ANTHROPIC_API_KEY": "sk-ant-x", "HOME": "/h"}
    environment = build_environment(
        inputs, inherited, allow=["ANTHROPIC_API_KEY"], plan_env={"X_SECRET": "planned-1"}
    )
    assert secret_values(inputs, environment) == (
        *("run-token", "hunter22", "gh-token"),
        *("proxypass", "sk-ant-x", "planned-1"),
    )
    assert secret_values(EnvironmentInputs()) == ()


names = st.one_of(
    st.sampled_from(["PATH", "HOME", "XDG_X", "CLAUDECODE", "API_KEY", "A_RUN_ID", "DRAGOMAN_X", MARKER]),
    st.text("AB_", min_size=1, max_size=4),
)
variables = st.dictionaries(names, st.text("xy1", min_size=1, max_size=3))


@given(inherited=variables, plan=variables, config=variables, env=variables)
def test_whatever_is_set_the_layers_hold(
    inherited: dict[str, str], plan: dict[str, str], config: dict[str, str], env: dict[str, str]
) -> None:
    inputs = EnvironmentInputs({"RUN_ID": "r"}, env_prefix="A", config_env=config, env=env, marker="m")
    built = build_environment(inputs, inherited, strip=["CLAUDE*"], allow=["*"], plan_env=plan)
    assert built.pop(MARKER) == "m"
    for name, value in built.items():
        layers = (env, config, plan, {"A_RUN_ID": "r"}, inherited, {"PATH": DEFAULT_PATH})
        assert value == next(layer[name] for layer in layers if name in layer)
    for name in set(built) - set(env) - set(config) - set(plan) - {"A_RUN_ID"}:
        assert not name.startswith(("A_", "DRAGOMAN_", "CLAUDE"))
        assert name != "API_KEY"


def test_secrets_of_tool_servers_are_collected_and_reach_no_environment() -> None:
    servers = ({"DB_TOKEN": "db-token-1", "PORT": "5432"}, {"Authorization": "Bearer web-token-1", "Accept": "*/*"})
    inputs = EnvironmentInputs(secrets=tuple(value for one in servers for value in variable_secrets(one)))
    assert secret_values(inputs) == ("db-token-1", "Bearer web-token-1", "web-token-1")
    assert not any("token" in value for value in build_environment(inputs, {}).values())


@pytest.mark.parametrize(
    ("inherited", "cache"),
    [
        ({"HOME": "/home/u"}, "/home/u/.cache/dragoman/node"),
        ({"HOME": "/home/u", "XDG_CACHE_HOME": "/c"}, "/c/dragoman/node"),
        ({"HOME": "/home/u", "NODE_COMPILE_CACHE": "/n"}, "/n"),
    ],
)
def test_compiled_code_of_node_is_kept_where_the_user_has_caches(inherited: dict[str, str], cache: str) -> None:
    assert node_variables(inherited) == {"NODE_COMPILE_CACHE": cache}
