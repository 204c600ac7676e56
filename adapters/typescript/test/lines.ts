// An adapter for a program that prints the JSON lines of the adapter `process`, as the scripted agent of the conformance kit does.
import { features, serve, type Line, type Run } from "@dragoman/adapter";
import { Feature, Outcome, PermissionMode, ToolKind, ToolStatus, type JsonObject } from "@dragoman/client/v1";

async function run(run: Run) {
  let items = 0;
  let item = "";
  let report: JsonObject | undefined;
  const text = (frame: JsonObject, key: string) => String(frame[key] ?? "");
  const handle = async (line: Line) => {
    let frame: JsonObject;
    try {
      frame = JSON.parse(line.text) as JsonObject;
    } catch {
      return run.log(line);
    }
    if (typeof frame["type"] !== "string") return run.log(line);
    const isPiece = frame["type"] === "assistant" && frame["delta"] === true;
    if (!isPiece && item !== "") {
      await run.emit({ case: "text", value: { itemId: item } });
      item = "";
    }
    if (isPiece) return run.text((item ||= `item-${++items}`), text(frame, "text"));
    if (frame["type"] === "assistant") {
      return run.emit({
        case: "text",
        value: { itemId: `item-${++items}`, content: { case: "whole", value: text(frame, "text") } },
      });
    }
    if (frame["type"] === "tool_call") {
      const call = {
        id: text(frame, "id"),
        name: text(frame, "name"),
        kind: ToolKind.OTHER,
        inputJson: JSON.stringify(frame["input"]),
      };
      return run.emit({ case: "toolCall", value: { ...call, status: ToolStatus.RUNNING } });
    }
    if (frame["type"] === "tool_result") {
      const result = {
        toolCallId: text(frame, "toolUseId"),
        content: text(frame, "content"),
        status: frame["isError"] ? ToolStatus.FAILED : ToolStatus.COMPLETED,
      };
      return run.emit({ case: "toolResult", value: result });
    }
    if (frame["type"] === "result") report = frame;
    return undefined;
  };
  const exit = await run.exec({ path: run.program, stdin: run.prompt }, handle);
  const result = exit.result();
  if (result.outcome === Outcome.FAILED && report?.["isError"])
    Object.assign(result.failure!, { message: text(report, "text") });
  return result;
}

const schema = {
  type: "object",
  additionalProperties: false,
  required: ["command"],
  properties: { command: { type: "string" }, env: { type: "object", additionalProperties: { type: "string" } } },
};

await serve({
  describe: {
    adapter: "lines",
    label: "JSON lines",
    version: "1",
    configSchemaJson: JSON.stringify(schema),
    capabilities: features(
      PermissionMode.NONE,
      Feature.PROMPT,
      Feature.WORKSPACE,
      Feature.TEXT_DELTAS,
      Feature.TOOL_START,
      Feature.AUTH_TOKEN,
    ),
  },
  run,
});
