// An adapter for the agent newagent: it runs the agent and turns the JSON lines that it prints into events. Change Frame
// and #frame to what your agent prints, run to its command line, and describe to what it can do.
import { Failure, features, type Adapter, type Line, type Run } from "@dragoman/adapter";
import { FailureKind, Feature, Outcome, PermissionMode, ToolKind, ToolStatus } from "@dragoman/client/v1";

const schema = {
  type: "object",
  additionalProperties: false,
  properties: { command: { type: "string", description: "Another executable than newagent." } },
};

/** What the agent is. A feature that is not declared is refused before anything starts. */
export const adapter: Adapter = {
  describe: {
    adapter: "newagent",
    label: "Newagent",
    version: "0.1.0",
    configSchemaJson: JSON.stringify(schema),
    configurationDoc: "Use when: (say what this agent is good at). Don't use when: (and what it is not).",
    capabilities: features(PermissionMode.NONE, Feature.PROMPT, Feature.WORKSPACE, Feature.TOOL_START),
  },
  program: "newagent",
  run,
};

/** Does one run: it starts the agent, and returns how the run ended. */
async function run(run: Run) {
  const agent = new Newagent(run);
  const exit = await run.exec({ path: run.program, stdin: run.prompt }, (line) => agent.line(line));
  const result = exit.result();
  const { done } = agent; // the agent's own report outranks its exit code
  if (done?.isError) throw new Failure(FailureKind.PROCESS_CRASHED, "newagent_error", done.text);
  if (done) return Object.assign(result, { outcome: Outcome.SUCCEEDED, failure: undefined, summary: done.text });
  if (result.failure) return result;
  throw new Failure(FailureKind.NO_RESULT, "", "newagent exited without a result."); // code 0 proves nothing
}

/** A line of the agent. */
type Frame =
  | { type: "assistant"; text: string; delta?: boolean }
  | { type: "tool_call"; id: string; name: string; input: unknown }
  | { type: "tool_result"; toolUseId: string; content: string; isError?: boolean }
  | { type: "result"; isError: boolean; text: string };

/** Understands what the agent prints in one run. */
class Newagent {
  readonly #run: Run;
  #item = 0; // the number of the message that is being read
  done: Extract<Frame, { type: "result" }> | undefined; // its report that it is done

  constructor(run: Run) {
    this.#run = run;
  }

  /** Turns a line into events. */
  async line(line: Line): Promise<void> {
    const frame = parse(line.text);
    if (!frame || !(await this.#frame(frame))) this.#run.log(line); // no line is lost
  }

  /** Writes what a frame says; false if it is of no known type. */
  async #frame(frame: Frame): Promise<boolean> {
    if (frame.type !== "assistant" || !frame.delta) {
      // the message that came in pieces is complete
      await this.#run.emit({ case: "text", value: { itemId: `text-${this.#item}` } });
      this.#item += 1;
    }
    switch (frame.type) {
      case "assistant":
        await this.#run.text(`text-${this.#item}`, frame.text);
        return true;
      case "tool_call": {
        const { id, name, input } = frame;
        const call = { id, name, kind: ToolKind.OTHER, inputJson: JSON.stringify(input), status: ToolStatus.RUNNING };
        await this.#run.emit({ case: "toolCall", value: call });
        return true;
      }
      case "tool_result": {
        const { toolUseId: toolCallId, content } = frame;
        const status = frame.isError ? ToolStatus.FAILED : ToolStatus.COMPLETED;
        await this.#run.emit({ case: "toolResult", value: { toolCallId, content, status } });
        return true;
      }
      case "result":
        this.done = frame;
        this.#run.done(); // it may live on for a moment, and is not waited for
        return true;
      default:
        return false;
    }
  }
}

function parse(text: string): Frame | undefined {
  try {
    return (JSON.parse(text) ?? undefined) as Frame | undefined;
  } catch {
    return undefined; // it is no JSON
  }
}
