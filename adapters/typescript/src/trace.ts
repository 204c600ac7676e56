import type { AgentEvent } from "@dragoman/client/v1";
import type { Metadata } from "@grpc/grpc-js";

import type { Log } from "./adapter.js";
import type { Variables } from "./environment.js";

const MOST_STATE = 512; // bytes
// As https://www.w3.org/TR/trace-context/#traceparent-header says; a later version may be longer, and is read as the first.
const SHAPE = /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}$/;

/** A span of a trace, as its children get it (W3C Trace Context); no texts for none. */
export interface TraceContext {
  parent: string;
  state: string;
}

/** The span of a run. */
export interface RunSpan {
  /** What those get that work for the run. */
  readonly trace: TraceContext;
  /** Takes note of an event as it is written: a tool call that begins or ends, or the end of the run. */
  note: (event: AgentEvent) => void;
  /** Does something within the span. */
  within: <T>(act: () => T) => T;
}

/** Returns the trace in the metadata of a call; none if what is there is no trace. */
export function traceIn(metadata: Metadata): TraceContext {
  const last = (key: string) => String(metadata.get(key).at(-1) ?? "");
  const [parent, state] = [last("traceparent"), last("tracestate")];
  if (!SHAPE.test(parent)) return { parent: "", state: "" };
  return { parent, state: state.length <= MOST_STATE && /^[ -~]*$/.test(state) ? state : "" };
}

/** Returns what an agent finds of a trace in its environment. */
export function traceVariables({ parent, state }: TraceContext): Variables {
  return { ...(parent && { TRACEPARENT: parent }), ...(state && { TRACESTATE: state }) };
}

/** Returns a log whose lines say which trace they belong to. */
export function traced(log: Log, { parent }: TraceContext): Log {
  const [, trace_id, span_id] = SHAPE.exec(parent) ?? [];
  if (!trace_id || !span_id) return log;
  return (level, message, fields) => log(level, message, { ...fields, trace_id, span_id });
}
