#!/usr/bin/env node
// An adapter for the Claude Agent SDK: the agent loop of Claude Code, as Anthropic's TypeScript package runs it.
import {
  query,
  type CanUseTool,
  type Options,
  type SDKUserMessage,
  type SpawnOptions,
} from "@anthropic-ai/claude-agent-sdk";
import { Failure, features, serve, type Exit, type Program, type Run } from "@dragoman/adapter";
import {
  FailureKind,
  Feature,
  OutputStream,
  PermissionMode,
  SessionDisposition,
  type Result,
} from "@dragoman/client/v1";

import { createInterface } from "node:readline";
import type { Readable } from "node:stream";

import { Messages, SessionGone } from "./messages.js";
import { subjectOf } from "./tools.js";

// Of the adapter's own variables, those that say which account and which service to use.
const OWN_VARIABLES = /^(?:ANTHROPIC|CLAUDE)_|^DISABLE_(?:TELEMETRY|ERROR_REPORTING|AUTOUPDATER)$/;
const MODES = ["default", "acceptEdits", "plan", "dontAsk"] as const;

const schema = {
  type: "object",
  additionalProperties: false,
  properties: {
    cwd: { type: "string", description: "The working directory, if the request names none." },
    command: { type: "string", description: "Another executable of Claude Code than the one of the package." },
    model: { type: "string", description: "The model, if the request names none." },
    maxTurns: { type: "integer", minimum: 1, description: "How many model turns the run may take." },
    env: { type: "object", additionalProperties: { type: "string" }, description: "Variables of the agent." },
    timeoutSec: { type: "number", minimum: 0, description: "limits.wall, if the request has none." },
    graceSec: { type: "number", minimum: 0, description: "limits.grace, if the request has none." },
  },
};

async function run(run: Run): Promise<Result | undefined> {
  try {
    return await attempt(run, run.session.nativeId);
  } catch (error) {
    if (!(error instanceof SessionGone)) throw error;
    const sessionReason = "Claude Code does not know the session any more.";
    run.retry(error, { sessionDisposition: SessionDisposition.RESUME_REFUSED, sessionReason });
    return await attempt(run, "");
  }
}

/** Runs the agent once, in a session that is resumed if it has an ID. */
async function attempt(run: Run, session: string): Promise<Result | undefined> {
  const denied = new Set<string>();
  const messages = new Messages(run, denied);
  const claude = new Claude(run);
  const finished = new AbortController();
  try {
    const stream = query({
      prompt: once(run.prompt, finished.signal),
      options: claude.options(session, permission(run, denied)),
    });
    let result: Result | undefined;
    for await (const message of stream) {
      result ??= await messages.take(message);
      if (result) finished.abort(); // it gets no other prompt
    }
    const exit = await claude.exit();
    return result && Object.assign(result, { exitCode: exit?.code, treeConfirmedDead: exit?.isConfirmed });
  } catch (error) {
    finished.abort();
    throw await claude.explained(error);
  }
}

/** The one prompt of a run. The stream of prompts stays open for the answers to permission requests. */
async function* once(prompt: string, finished: AbortSignal): AsyncGenerator<SDKUserMessage> {
  yield { type: "user", message: { role: "user", content: prompt }, parent_tool_use_id: null };
  await new Promise<void>((resolve) => {
    if (finished.aborted) resolve();
    else finished.addEventListener("abort", () => resolve(), { once: true });
  });
}

function permission(run: Run, denied: Set<string>): CanUseTool {
  return async (name, input, { toolUseID, title, description, suggestions, suppressAlwaysAllowRule }) => {
    const question = { title, description, editableInputJson: JSON.stringify(input) };
    const decision = await run.permit(subjectOf(name, input, toolUseID), question);
    if (!decision.isAllowed) {
      denied.add(toolUseID);
      return { behavior: "deny", message: decision.message || "The user rejected it." };
    }
    const updatedInput =
      decision.updatedInputJson === "" ? input : (JSON.parse(decision.updatedInputJson) as typeof input);
    const rules = suppressAlwaysAllowRule ? [] : (suggestions ?? []);
    const updatedPermissions = decision.isForAll
      ? rules.map((rule) => ({ ...rule, destination: "session" as const }))
      : undefined;
    return { behavior: "allow", updatedInput, updatedPermissions };
  };
}

/** The program of Claude Code, which the package starts and speaks with, and this run supervises. */
class Claude {
  readonly #run: Run;
  #started: { exit: Exit; program?: Program } | undefined;
  #errors = Promise.resolve();

  constructor(run: Run) {
    this.#run = run;
  }

  options(session: string, canUseTool: CanUseTool): Options {
    const { request, config, cwd } = this.#run;
    const mode = MODES.find((known) => known === request.permissions?.nativeMode);
    return {
      canUseTool,
      cwd,
      env: {},
      includePartialMessages: true,
      disallowedTools: ["AskUserQuestion"],
      permissionMode: mode ?? "default",
      additionalDirectories: request.workspace?.additionalDirectories,
      model: request.model || text(config["model"]),
      maxTurns: typeof config["maxTurns"] === "number" ? config["maxTurns"] : undefined,
      pathToClaudeCodeExecutable: text(config["command"]),
      systemPrompt: { type: "preset", preset: "claude_code", append: request.systemPrompt || undefined },
      spawnClaudeCodeProcess: (options) => this.#spawn(options),
      ...(session === ""
        ? {}
        : { resume: session, forkSession: this.#run.session.disposition === SessionDisposition.FORK }),
    };
  }

  #spawn({ command, args, env }: SpawnOptions): Program["process"] {
    const own = Object.entries({ ...process.env, ...env }).filter(
      (entry): entry is [string, string] => entry[1] !== undefined && (OWN_VARIABLES.test(entry[0]) || entry[0] in env),
    );
    this.#started = this.#run.spawn({ path: command, args, env: Object.fromEntries(own) });
    const { program, exit } = this.#started;
    if (!program)
      throw new Failure(
        FailureKind.SPAWN_FAILED,
        "spawn_failed",
        exit.result().failure?.message ?? "The run is to stop.",
      );
    this.#errors = this.#log(program.process.stderr);
    return program.process;
  }

  /** Waits until the program and all that it started is gone. */
  async exit(): Promise<Exit | undefined> {
    await this.#errors;
    return this.#started?.program?.ended;
  }

  async #log(stderr: Readable): Promise<void> {
    for await (const line of createInterface({ input: stderr }))
      this.#run.log({ stream: OutputStream.STDERR, text: line });
  }

  /** Returns what an error of the package comes to: the end of the program says more. */
  async explained(error: unknown): Promise<unknown> {
    const { program, exit } = this.#started ?? {};
    if (program && !(error instanceof Failure)) program.process.kill("SIGTERM");
    await this.exit();
    if (error instanceof Failure || !exit) return error;
    const failure = exit.result().failure;
    return failure ? new Failure(failure.kind, failure.code, failure.message) : error;
  }
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

await serve({
  describe: {
    adapter: "claude_agent",
    label: "Claude Agent SDK",
    version: "1",
    configSchemaJson: JSON.stringify(schema),
    configurationDoc:
      "Use when: a task is for Claude, run by Anthropic's TypeScript package. Login: as of Claude Code.",
    capabilities: features(
      PermissionMode.STRICT,
      Feature.PROMPT,
      Feature.WORKSPACE,
      Feature.TEXT_DELTAS,
      Feature.THINKING,
      Feature.TOOL_START,
      Feature.PER_MODEL_USAGE,
      Feature.COST,
      Feature.PERMISSION_REQUESTS,
      Feature.RESUME,
      Feature.RESUME_REJECTION,
      Feature.FORK,
      Feature.MODEL_CHOICE,
      Feature.SYSTEM_PROMPT,
      Feature.MAX_TURNS,
      Feature.COMPACTION,
    ),
  },
  run,
});
