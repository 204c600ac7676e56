/** What the messages of the Claude Agent SDK mean. It writes events to its run, and nothing else. */
import type { SDKMessage, SDKResultMessage, SDKUserMessage } from "@anthropic-ai/claude-agent-sdk";
import { Failure, type EventBody, type Run } from "@dragoman/adapter";
import {
  create,
  CostBasis,
  FailureKind,
  Outcome,
  ResultSchema,
  SessionChange,
  ToolStatus,
  UsageScope,
  UsageSemantics,
  type MessageInitShape,
  type Result,
  type UsageSchema,
} from "@dragoman/client/v1";

import { kindOf } from "./tools.js";

/** Classes of errors of a model call, as `error` of an assistant message names them. */
const BY_ERROR: Record<string, FailureKind> = {
  authentication_failed: FailureKind.AUTH_REQUIRED,
  oauth_org_not_allowed: FailureKind.AUTH_REQUIRED,
  account_on_hold: FailureKind.AUTH_REQUIRED,
  verification_required: FailureKind.AUTH_REQUIRED,
  cloud_credential_error: FailureKind.AUTH_REQUIRED,
  billing_error: FailureKind.QUOTA_EXCEEDED,
  rate_limit: FailureKind.RATE_LIMITED,
  overloaded: FailureKind.UPSTREAM_UNAVAILABLE,
  server_error: FailureKind.UPSTREAM_UNAVAILABLE,
  invalid_request: FailureKind.INVALID_CONFIG,
  model_not_found: FailureKind.MODEL_NOT_FOUND,
  max_output_tokens: FailureKind.OUTPUT_LIMIT,
};
const BY_STATUS: Record<number, FailureKind> = {
  401: FailureKind.AUTH_REQUIRED,
  403: FailureKind.AUTH_REQUIRED,
  404: FailureKind.MODEL_NOT_FOUND,
  429: FailureKind.RATE_LIMITED,
};
const UNKNOWN_SESSION = /^No conversation found/;

/** The session to resume does not exist. */
export class SessionGone extends Failure {
  constructor(message: string) {
    super(FailureKind.SESSION_LOST, "claude_session_lost", message);
  }
}

/** Reads the messages of one attempt. */
export class Messages {
  readonly #run: Run;
  readonly #denied: ReadonlySet<string>;
  readonly #streamed = new Set<string>(); // model messages whose pieces were written
  #message = ""; // that is being streamed
  #error = ""; // of the last model call

  /** @param denied the tool calls that were denied */
  constructor(run: Run, denied: ReadonlySet<string>) {
    this.#run = run;
    this.#denied = denied;
  }

  /** Takes a message; returns how the run ended, once one says so. */
  async take(message: SDKMessage): Promise<Result | undefined> {
    switch (message.type) {
      case "system":
        if (message.subtype === "init") await this.#session(message);
        return undefined;
      case "stream_event":
        await this.#streamEvent(message);
        return undefined;
      case "assistant":
        await this.#assistant(message);
        return undefined;
      case "user":
        await this.#toolResults(message);
        return undefined;
      case "result":
        return this.#result(message);
      default:
        return undefined; // of no interest to a caller
    }
  }

  #emit(body: EventBody, parent: string | null): Promise<void> {
    const lineage = parent ? { subagentId: parent, parentToolCallId: parent } : undefined;
    return this.#run.emit(body, { lineage });
  }

  #session(init: Extract<SDKMessage, { type: "system"; subtype: "init" }>): Promise<void> {
    const value = {
      nativeId: init.session_id,
      model: init.model,
      tools: init.tools,
      mcpServers: init.mcp_servers.map(({ name, status }) => ({ name, status })),
      mode: init.permissionMode,
      commands: init.slash_commands,
      skills: init.skills,
      agentVersion: init.claude_code_version,
    };
    return this.#emit({ case: "session", value }, null);
  }

  async #streamEvent({
    event,
    parent_tool_use_id: parent,
  }: Extract<SDKMessage, { type: "stream_event" }>): Promise<void> {
    if (event.type === "message_start") {
      this.#message = event.message.id;
      this.#streamed.add(this.#message);
    } else if (event.type === "content_block_delta") {
      const itemId = `${this.#message}-${event.index}`;
      const { delta } = event;
      if (delta.type === "text_delta") {
        await this.#emit({ case: "text", value: { itemId, content: { case: "delta", value: delta.text } } }, parent);
      } else if (delta.type === "thinking_delta") {
        await this.#emit(
          { case: "thinking", value: { itemId, content: { case: "delta", value: delta.thinking } } },
          parent,
        );
      }
    } else if (event.type === "content_block_stop") {
      // of either kind
      const itemId = `${this.#message}-${event.index}`;
      await this.#emit({ case: "text", value: { itemId } }, parent);
      await this.#emit({ case: "thinking", value: { itemId } }, parent);
    }
  }

  async #assistant(frame: Extract<SDKMessage, { type: "assistant" }>): Promise<void> {
    const { message, parent_tool_use_id: parent } = frame;
    if (frame.error) this.#error = frame.error;
    for (const block of message.content) {
      if (block.type === "tool_use") {
        const { id, name } = block;
        const call = {
          id,
          name,
          kind: kindOf(name),
          inputJson: JSON.stringify(block.input),
          status: ToolStatus.RUNNING,
        };
        await this.#emit({ case: "toolCall", value: call }, parent);
      } else if (block.type === "text" && !frame.error && !this.#streamed.has(message.id)) {
        const value = { itemId: message.id, content: { case: "whole" as const, value: block.text } };
        await this.#emit({ case: "text", value }, parent);
      }
    }
  }

  async #toolResults({ message, parent_tool_use_id: parent }: SDKUserMessage): Promise<void> {
    const blocks = typeof message.content === "string" ? [] : message.content;
    for (const block of blocks) {
      if (block.type !== "tool_result") continue;
      const { tool_use_id: toolCallId, is_error: isError = false } = block;
      const parts = typeof block.content === "string" ? [block.content] : (block.content ?? []);
      const content = parts
        .map((part) => (typeof part === "string" ? part : "text" in part ? part.text : ""))
        .join("\n");
      const ended = isError ? ToolStatus.FAILED : ToolStatus.COMPLETED;
      const status = this.#denied.has(toolCallId) ? ToolStatus.DENIED : ended;
      await this.#emit({ case: "toolResult", value: { toolCallId, content, isError, status } }, parent);
    }
  }

  #result(frame: SDKResultMessage): Result {
    const isGood = frame.subtype === "success" && !frame.is_error;
    if (!isGood) throw this.#failure(frame);
    return create(ResultSchema, {
      outcome: Outcome.SUCCEEDED,
      subtype: frame.subtype,
      summary: frame.subtype === "success" ? frame.result : "",
      usage: usageOf(frame),
      provider: "anthropic",
      model: Object.keys(frame.modelUsage)[0],
      session: { change: SessionChange.SET, handle: { nativeId: frame.session_id } },
    });
  }

  #failure(frame: SDKResultMessage): Failure {
    const text = frame.subtype === "success" ? frame.result : frame.errors.join("\n");
    if (this.#run.session.nativeId !== "" && UNKNOWN_SESSION.test(text)) return new SessionGone(text);
    const message = text || "Claude Code reports that it failed, and not why.";
    if (frame.subtype === "error_max_turns") return new Failure(FailureKind.MAX_TURNS, "claude_max_turns", message);
    const status = frame.subtype === "success" ? frame.api_error_status : undefined;
    const kind = BY_ERROR[this.#error] ?? (status ? BY_STATUS[status] : undefined);
    const code = this.#error || frame.subtype.replace(/^error_/, "");
    return new Failure(kind ?? FailureKind.NO_RESULT, `claude_${code === "success" ? "error" : code}`, message);
  }
}

function usageOf({ modelUsage, total_cost_usd: total }: SDKResultMessage): MessageInitShape<typeof UsageSchema> {
  const models = Object.entries(modelUsage).map(([model, used]) => ({
    model,
    tokens: {
      input: BigInt(used.inputTokens),
      output: BigInt(used.outputTokens),
      cacheRead: BigInt(used.cacheReadInputTokens),
      cacheWrite: BigInt(used.cacheCreationInputTokens),
    },
  }));
  const sum = (count: "input" | "output" | "cacheRead" | "cacheWrite") =>
    models.reduce((all, { tokens }) => all + tokens[count], 0n);
  return {
    scope: UsageScope.RUN,
    semantics: UsageSemantics.CUMULATIVE,
    models,
    tokens: { input: sum("input"), output: sum("output"), cacheRead: sum("cacheRead"), cacheWrite: sum("cacheWrite") },
    cost:
      total > 0
        ? { amount: String(total), currency: "USD", basis: CostBasis.REPORTED, provider: "anthropic" }
        : undefined,
  };
}
