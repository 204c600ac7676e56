"""OpenClaw, with a provider of our own that speaks chat completions."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

MODEL: Final = "scripted/scripted-model"

_CONFIG: Final = """\
{{
  "update": {{"checkOnStart": false, "auto": {{"enabled": false}}}},
  "telemetry": {{"enabled": false}},
  "models": {{
    "mode": "merge",
    "providers": {{
      "scripted": {{
        "baseUrl": "${{SCRIPTED_BASE_URL}}",
        "apiKey": "${{SCRIPTED_API_KEY}}",
        "api": "openai-completions",
        "models": [
          {{
            "id": "scripted-model",
            "name": "Scripted",
            "reasoning": true,
            "input": ["text"],
            "cost": {{"input": 1, "output": 2, "cacheRead": 0.1, "cacheWrite": 1}},
            "contextWindow": 200000,
            "maxTokens": 32000
          }}
        ]
      }}
    }}
  }},
  "agents": {{"defaults": {{"model": {{"primary": "scripted/scripted-model"}}, "skipBootstrap": true}}}}
}}
"""

OPENCLAW: Final = AgentFamily(
    executable="openclaw",
    config=".openclaw",
    environment={
        "OPENCLAW_STATE_DIR": "{config}",
        "OPENCLAW_NO_AUTO_UPDATE": "1",
        "DO_NOT_TRACK": "1",
        "NODE_COMPILE_CACHE": "{tmp}/compiled",
    },
    model={"SCRIPTED_BASE_URL": "{url}/v1", "SCRIPTED_API_KEY": "{key}"},
    model_files={".openclaw/openclaw.json": _CONFIG},
    tools={
        "write": Native("write", {"path": "path", "content": "content"}),
        "read": Native("read", {"path": "path"}),
        "edit": Native("edit", {"path": "path", "oldText": "old", "newText": "new"}),
        "shell": Native("exec", {"command": "command"}),
        "background": Native("exec", {"command": "command"}, {"background": True}),
        "skill": Native("read", templates={"path": "<location>"}),
    },
)
