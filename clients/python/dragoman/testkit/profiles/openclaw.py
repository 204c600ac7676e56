"""OpenClaw, with a provider of our own that speaks chat completions."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

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
            "input": ["text", "image"],
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

OPENCLAW: Final = AgentProfile(
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
        "write": NativeTool("write", {"path": "path", "content": "content"}),
        "read": NativeTool("read", {"path": "path"}),
        "edit": NativeTool("edit", {"path": "path", "oldText": "old", "newText": "new"}),
        "shell": NativeTool("exec", {"command": "command"}),
        "background": NativeTool("exec", {"command": "command"}, {"background": True}),
        "skill": NativeTool("read", templates={"path": "<location>"}),
    },
)
