// An adapter for an agent that prints JSON lines, as docs/guides/write-an-adapter-typescript.md explains it.
import { features, serve, type Line, type Run } from "@dragoman/adapter";
import {
  create,
  Feature,
  Outcome,
  PermissionMode,
  ToolKind,
  ToolStatus,
  UsageSchema,
  UsageScope,
} from "@dragoman/client/v1";

const schema = {
  type: "object",
  additionalProperties: false,
  properties: { command: { type: "string", description: "Another executable than scribe." } },
};

// A line of the agent.
type Frame =
  | { type: "text"; text: string }
  | { type: "tool_start"; id: string; name: string; input: unknown }
  | { type: "tool_end"; id: string; ok: boolean; output: string }
  | { type: "done"; summary: string; tokens: { input?: number; output?: number } }
  | { type: "error"; message: string };

function frameOf(line: Line): Frame | undefined {
  try {
    return JSON.parse(line.text) as Frame;
  } catch {
    return undefined;
  }
}

async function run(run: Run) {
  let done: Extract<Frame, { type: "done" }> | undefined;
  let failure = "";
  const handle = async (line: Line) => {
    const frame = frameOf(line);
    switch (frame?.type) {
      case "text":
        return run.emit({
          case: "text",
          value: { itemId: "answer", content: { case: "whole", value: frame.text } },
        });
      case "tool_start": {
        const { id, name, input } = frame;
        const call = {
          id,
          name,
          kind: ToolKind.EDIT,
          inputJson: JSON.stringify(input),
          status: ToolStatus.RUNNING,
        };
        return run.emit({ case: "toolCall", value: call });
      }
      case "tool_end": {
        const status = frame.ok ? ToolStatus.COMPLETED : ToolStatus.FAILED;
        const result = { toolCallId: frame.id, content: frame.output, status, isError: !frame.ok };
        return run.emit({ case: "toolResult", value: result });
      }
      case "done":
        done = frame;
        return run.done(); // it may live on for a moment, and is not waited for
      case "error":
        failure = frame.message;
        return;
      default:
        return run.log(line); // no line is lost
    }
  };
  const exit = await run.exec({ path: run.program, stdin: run.prompt }, handle);
  const result = exit.result();
  if (done) {
    // the agent's own report outranks its exit code
    const count = (tokens?: number) => (tokens === undefined ? undefined : BigInt(tokens)); // absent is not zero
    const tokens = { input: count(done.tokens.input), output: count(done.tokens.output) };
    const usage = create(UsageSchema, { scope: UsageScope.RUN, tokens });
    return Object.assign(result, { outcome: Outcome.SUCCEEDED, failure: undefined, summary: done.summary, usage });
  }
  if (result.failure && failure !== "") Object.assign(result.failure, { code: "scribe_error", message: failure });
  return result;
}

await serve({
  describe: {
    adapter: "scribe_ts",
    label: "Scribe",
    version: "1",
    configSchemaJson: JSON.stringify(schema),
    configurationDoc: "Use when: something is to be noted. Don't use when: you want an answer.",
    capabilities: features(PermissionMode.NONE, Feature.PROMPT, Feature.WORKSPACE, Feature.TOOL_START),
  },
  program: "scribe",
  run,
});
