/**
 * Spans of runs and of their tool calls, by OpenTelemetry if the program has its API, whose provider decides what is
 * recorded. Names and attributes are those of the conventions for generative AI; no content is recorded.
 */
import { setTimeout as delay } from "node:timers/promises";

import {
  FailureKind,
  Outcome,
  ToolStatus,
  type AgentEvent,
  type ExecuteRequest,
  type Result,
} from "@dragoman/client/v1";

import type { Log } from "./adapter.js";
import { textOf } from "./failure.js";
import { cutText } from "./fields.js";
import type { RunSpan, TraceContext } from "./trace.js";

const MOST_OPEN = 1000; // tool calls of one run that may be under way; spans of further ones are not recorded
const MOST_NAME = 128; // bytes
const FLUSH_MS = 5000;

const SAMPLED = 1; // flag of a trace
const ERROR = 2; // status of a span

interface TraceState {
  get(key: string): string | undefined;
  set(key: string, value: string): TraceState;
  unset(key: string): TraceState;
  serialize(): string;
}

interface SpanContext {
  traceId: string;
  spanId: string;
  traceFlags: number;
  traceState?: TraceState | undefined;
}

interface Span {
  spanContext(): SpanContext;
  setAttribute(name: string, value: string | number): unknown;
  setStatus(status: { code: number }): unknown;
  end(): void;
}

interface Tracer<Context> {
  startSpan(name: string, options: { attributes: Record<string, string | undefined> }, context: Context): Span;
}

/** What is used of a provider, or of what stands for the registered one. */
interface Provider {
  getDelegate?(): Provider;
  forceFlush?(): Promise<void>;
}

/** What is used of `@opentelemetry/api`, which this package can be compiled without. */
export interface Otel<Context = unknown> {
  ROOT_CONTEXT: Context;
  context: { with<T>(context: Context, act: () => T): T };
  trace: {
    getTracer(name: string): Tracer<Context>;
    getTracerProvider(): object;
    getSpanContext(context: Context): SpanContext | undefined;
    setSpan(context: Context, span: Span): Context;
    setSpanContext(context: Context, span: SpanContext & { isRemote: boolean }): Context;
  };
  createTraceState(text: string): TraceState;
  isSpanContextValid(span: SpanContext): boolean;
}

/** Returns the API of OpenTelemetry, if the program has it. */
export function loadApi(): Promise<Otel | undefined> {
  const name: string = "@opentelemetry/api";
  return import(name).catch(() => undefined);
}

/** Exports the spans that the registered provider still keeps, if it can and that takes no longer than a bound. */
export async function flushSpans(log: Log): Promise<void> {
  const registered: Provider | undefined = (await loadApi())?.trace.getTracerProvider();
  const provider = registered?.getDelegate?.() ?? registered;
  const over = new AbortController();
  const tooLate = delay(FLUSH_MS, undefined, { signal: over.signal }).then(() => {
    throw new Error(`the provider takes more than ${FLUSH_MS} ms`);
  });
  try {
    await Promise.race([provider?.forceFlush?.(), tooLate]);
  } catch (error) {
    log("warning", "spans were not exported", { error: textOf(error) });
  }
  tooLate.catch(() => {}); // it is over
  over.abort();
}

/**
 * Begins the span of a run.
 *
 * @param received the trace of the call that starts it, which is passed on if no span is recorded
 */
export function beginSpan(
  otel: Otel | undefined,
  adapter: string,
  request: ExecuteRequest,
  received: TraceContext,
): RunSpan {
  const span = otel && new Recorded(otel, adapter, request, received);
  // Without a provider there is no span, or the one that the call came with.
  return span?.isOwn ? span : { trace: received, note: () => {}, within: (act) => act() };
}

class Recorded implements RunSpan {
  readonly #otel: Otel;
  readonly #tracer: Tracer<unknown>;
  readonly #span: Span;
  readonly #context: unknown;
  readonly #calls = new Map<string, Span>();
  readonly isOwn: boolean;

  constructor(otel: Otel, adapter: string, request: ExecuteRequest, received: TraceContext) {
    this.#otel = otel;
    this.#tracer = otel.trace.getTracer("dragoman");
    const all = {
      "gen_ai.operation.name": "invoke_agent",
      "gen_ai.agent.name": adapter,
      "gen_ai.agent.id": request.agent?.id,
      "gen_ai.request.model": request.model,
      "dragoman.run.id": request.runId,
    };
    const attributes = Object.fromEntries(Object.entries(all).filter(([, value]) => value));
    const parent = parentOf(otel, received);
    this.#span = this.#tracer.startSpan(`invoke_agent ${adapter}`, { attributes }, parent);
    this.#context = otel.trace.setSpan(parent, this.#span);
    const own = this.#span.spanContext();
    this.isOwn = otel.isSpanContextValid(own) && own.spanId !== otel.trace.getSpanContext(parent)?.spanId;
  }

  get trace(): TraceContext {
    const { traceId, spanId, traceFlags, traceState } = this.#span.spanContext();
    const flags = (traceFlags & SAMPLED).toString(16).padStart(2, "0");
    return { parent: `00-${traceId}-${spanId}-${flags}`, state: traceState?.serialize() ?? "" };
  }

  within<T>(act: () => T): T {
    return this.#otel.context.with(this.#context, act);
  }

  note({ body }: AgentEvent): void {
    if (body.case === "toolCall") this.#begin(body.value.id, body.value.name);
    else if (body.case === "toolResult") this.#endCall(body.value.toolCallId, body.value.status);
    else if (body.case === "result") this.#end(body.value);
  }

  #begin(id: string, full: string): void {
    if (this.#calls.has(id) || this.#calls.size >= MOST_OPEN) return; // emitted again whenever it changes
    const name = cutText(full, MOST_NAME);
    const attributes = {
      "gen_ai.operation.name": "execute_tool",
      "gen_ai.tool.name": name,
      ...(id && { "gen_ai.tool.call.id": id }),
    };
    this.#calls.set(id, this.#tracer.startSpan(`execute_tool ${name}`, { attributes }, this.#context));
  }

  #endCall(id: string, status: ToolStatus): void {
    const span = this.#calls.get(id);
    if (!span) return;
    this.#calls.delete(id);
    if (status === ToolStatus.FAILED || status === ToolStatus.DENIED) this.#fail(span, ToolStatus[status]);
    span.end();
  }

  #end({ model, provider, outcome, usage, failure }: Result): void {
    for (const span of this.#calls.values()) span.end();
    this.#calls.clear();
    const { input, output } = usage?.tokens ?? {};
    if (model) this.#span.setAttribute("gen_ai.response.model", model);
    if (provider) this.#span.setAttribute("gen_ai.provider.name", provider);
    if (input !== undefined) this.#span.setAttribute("gen_ai.usage.input_tokens", Number(input));
    if (output !== undefined) this.#span.setAttribute("gen_ai.usage.output_tokens", Number(output));
    this.#span.setAttribute("dragoman.run.outcome", (Outcome[outcome] ?? "").toLowerCase());
    if (failure) this.#fail(this.#span, FailureKind[failure.kind]);
    this.#span.end();
  }

  #fail(span: Span, kind = ""): void {
    span.setAttribute("error.type", kind.toLowerCase());
    span.setStatus({ code: ERROR });
  }
}

/** Returns the context of a trace that came with a call. */
function parentOf(otel: Otel, { parent, state }: TraceContext): unknown {
  const [, traceId, spanId, flags] = parent.split("-");
  if (!traceId || !spanId || !flags) return otel.ROOT_CONTEXT;
  const traceFlags = Number.parseInt(flags, 16) & SAMPLED;
  const traceState = otel.createTraceState(state);
  return otel.trace.setSpanContext(otel.ROOT_CONTEXT, { traceId, spanId, traceFlags, traceState, isRemote: true });
}
