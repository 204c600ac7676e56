"""How one agent program runs against the scripted model, as data: `AgentProfile`."""

from collections.abc import Mapping

from msgspec import Struct, field


class NativeTool(Struct, frozen=True):
    """A profile's own tool for a neutral action of the scripts, such as ``write`` or ``shell``.

    Attributes:
        name: Tool name as the agent offers it to the model.
        inputs: Native input field -> neutral argument.
        constants: Native input fields with a fixed value.
        templates: Native input field -> text in which ``<name>`` stands for a neutral argument.
    """

    name: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)


class AgentProfile(Struct, frozen=True):
    """One agent program: how to isolate it, and what it calls the tools that scripts use.

    Attributes:
        executable: Its command name.
        config: The configuration folder, relative to the home.
        environment: Variables of every run. In the values of this and the next two, ``{home}``, ``{config}``,
            ``{tmp}`` and ``{bin}`` stand for folders, made absolute, ``{url}`` for the model server's base
            address and ``{key}`` for a fake key.
        model: Variables of a run against a model server. Left out, the agent is logged out.
        files: Files to lay out before the first run, by path relative to the home. Braces that are no
            placeholder are doubled.
        model_files: Files that are laid out only if there is a model server.
        tools: Neutral action -> the profile's own tool.
        login_file: File below the configuration folder that holds a login; empty if there is none.
        login: What `log_in` writes into it.
        login_expiry: Where in that its expiry is, in Unix milliseconds; empty if it has none.
    """

    executable: str
    config: str
    environment: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model_files: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, NativeTool] = field(default_factory=dict)
    login_file: str = ""
    login: Mapping[str, object] = field(default_factory=dict)
    login_expiry: tuple[str, ...] = ()
