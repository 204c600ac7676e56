"""pi, the coding agent."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

PI: Final = AgentFamily(
    executable="pi",
    config=".pi/agent",
    environment={"PI_CODING_AGENT_DIR": "{config}", "PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    model={"SCRIPTED_API_KEY": "{key}"},
    model_files={
        ".pi/agent/models.json": '{{"providers": {{"scripted": {{"baseUrl": "{url}/v1", "apiKey": "SCRIPTED_API_KEY",'
        ' "api": "openai-completions", "models": ['
        '{{"id": "scripted-1", "name": "Scripted 1", "reasoning": true, "input": ["text"],'
        ' "cost": {{"input": 1, "output": 2, "cacheRead": 0.1, "cacheWrite": 1}},'
        ' "contextWindow": 200000, "maxTokens": 32000}}]}}}}}}',
        ".pi/agent/settings.json": '{{"defaultProvider": "scripted", "defaultModel": "scripted-1"}}',
    },
    tools={
        "write": Native("write", {"path": "path", "content": "content"}),
        "read": Native("read", {"path": "path"}),
        "edit": Native("edit", {"path": "path", "oldText": "old", "newText": "new"}),
        "shell": Native("bash", {"command": "command"}),
        "background": Native("bash", {"command": "command"}),
    },
)
