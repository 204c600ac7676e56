// What the adapter puts into its own gateway. A gateway serves many runs, so what is one run's own - its variables,
// and whether its caller has to be asked - lies in a file per session: <runs>/<sha256 of the session's key>.json.
//
// OpenClaw has no one to ask in such runs, so the questions take a way of their own: the adapter asks for the next
// one by dragoman.question, which answers when there is one, and settles it by dragoman.answer.
import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";

// These change nothing and send nothing; all other tools need permission, those of plugins included.
const HARMLESS = new Set([
  "read", "ls", "find", "grep", "memory_get", "memory_search", "session_status", "sessions_list",
  "sessions_history", "sessions_yield", "tool_describe", "tool_search", "update_plan",
]);
const LOOKING_ON = new Set(["list", "log", "poll"]);
const LONGEST_WAIT_MS = 2_000_000_000; // the run has its own limits

function runOf(runs, sessionKey) {
  const name = createHash("sha256").update(String(sessionKey)).digest("hex");
  try {
    return JSON.parse(readFileSync(join(runs, `${name}.json`), "utf8"));
  } catch {
    return undefined;
  }
}

function isHarmless(event) {
  return HARMLESS.has(event.toolName) || (event.toolName === "process" && LOOKING_ON.has(event.params?.action));
}

function blocked(reason) {
  return { block: true, blockReason: reason };
}

// The questions of one session: those that wait to be fetched, and the request that waits to fetch one.
class Counter {
  questions = [];
  fetch = undefined;

  serve() {
    if (this.fetch === undefined || this.questions.length === 0) return;
    const fetch = this.fetch;
    this.fetch = undefined;
    fetch(this.questions.shift());
  }
}

class Desk {
  #counters = new Map();
  #open = new Map();

  #counter(key) {
    if (!this.#counters.has(key)) this.#counters.set(key, new Counter());
    return this.#counters.get(key);
  }

  async ask(key, question, signal) {
    const answer = await new Promise((resolve) => {
      this.#open.set(question.id, resolve);
      signal?.addEventListener("abort", () => resolve({ allow: false, message: "The run was stopped." }));
      const counter = this.#counter(key);
      counter.questions.push(question);
      counter.serve();
    });
    this.#open.delete(question.id);
    if (!answer.allow) return blocked(answer.message || "Denied by the caller.");
    return answer.params === undefined ? undefined : { params: answer.params };
  }

  next(key) {
    return new Promise((resolve) => {
      const counter = this.#counter(key);
      counter.fetch?.({}); // one that was left behind
      counter.fetch = resolve;
      counter.serve();
    });
  }

  answer(params) {
    this.#open.get(params.id)?.(params);
  }

  leave(key) {
    this.#counters.get(key)?.fetch?.({});
    this.#counters.delete(key);
  }
}

export default {
  id: "dragoman",
  name: "Dragoman",
  register(api) {
    const { runs } = api.pluginConfig;
    // A plugin is loaded more than once in a gateway: its methods and its hooks are not of the same copy.
    const desk = (globalThis[Symbol.for("dragoman.desk")] ??= new Desk());
    api.registerGatewayMethod("dragoman.question", async ({ params, respond }) => {
      respond(true, await desk.next(params.sessionKey));
    });
    api.registerGatewayMethod("dragoman.answer", ({ params, respond }) => {
      desk.answer(params);
      respond(true, {});
    });
    api.registerGatewayMethod("dragoman.leave", ({ params, respond }) => {
      desk.leave(params.sessionKey);
      respond(true, {});
    });
    api.on("resolve_exec_env", (event) => runOf(runs, event.sessionKey)?.env ?? {});
    api.on(
      "before_tool_call",
      (event, context) => {
        if (isHarmless(event)) return undefined;
        const run = runOf(runs, context.sessionKey);
        if (run === undefined) return blocked("This session belongs to no run of the adapter.");
        const { toolName: tool, toolCallId: call, params } = event;
        if (!run.asks) return undefined;
        return desk.ask(context.sessionKey, { id: randomUUID(), tool, call, params }, context.abortSignal);
      },
      { timeoutMs: LONGEST_WAIT_MS },
    );
  },
};
