"""An MCP server of one tool, ``count``, over standard input and output: JSON-RPC, a line a message."""

import json
import os
import sys
from typing import Any

TOOL = {
    "name": "count",
    "description": "Counts the letters of a word.",
    "inputSchema": {"type": "object", "properties": {"which": {"type": "string"}}},
}


def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request."""
    if method == "initialize":
        info = {"name": "words", "version": "1"}
        return {
            "protocolVersion": parameters.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        which = parameters.get("arguments", {}).get("which", "")
        text = f"The {which} word has {len(os.environ['WORDS_TOKEN'])} letters."
        return {"content": [{"type": "text", "text": text}]}
    return {}


def main() -> None:
    """Serve until standard input closes."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            result = answer(request["method"], request.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
