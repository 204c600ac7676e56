"""pi, the coding agent."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

_MODEL: Final = (
    '{{{{"id": "scripted-{0}", "name": "Scripted {0}", "reasoning": true, "input": ["text", "image"],'
    ' "cost": {{{{"input": 1, "output": 2, "cacheRead": 0.1, "cacheWrite": 1}}}},'
    ' "contextWindow": 200000, "maxTokens": 32000}}}}'
)

PI: Final = AgentProfile(
    executable="pi",
    config=".pi/agent",
    environment={"PI_CODING_AGENT_DIR": "{config}", "PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    model={"SCRIPTED_API_KEY": "{key}"},
    model_files={
        ".pi/agent/models.json": '{{"providers": {{"scripted": {{"baseUrl": "{url}/v1", "apiKey": "SCRIPTED_API_KEY",'
        f' "api": "openai-completions", "models": [{_MODEL.format(1)}, {_MODEL.format(2)}]}}}}}}}}}}}}',
        ".pi/agent/settings.json": '{{"defaultProvider": "scripted", "defaultModel": "scripted-1"}}',
    },
    tools={
        "write": NativeTool("write", {"path": "path", "content": "content"}),
        "read": NativeTool("read", {"path": "path"}),
        "edit": NativeTool("edit", {"path": "path", "oldText": "old", "newText": "new"}),
        "shell": NativeTool("bash", {"command": "command"}),
        "background": NativeTool("bash", {"command": "command"}),
    },
)
