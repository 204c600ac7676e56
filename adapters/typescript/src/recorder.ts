import { clone, create } from "@bufbuild/protobuf";
import {
  AgentEventSchema,
  CapabilitiesSchema,
  EventOrigin,
  NoticeSchema,
  OutputStream,
  PermissionsSchema,
  RunCountersSchema,
  RunPhase,
  Severity,
  ToolStatus,
  timestampNow,
  type AgentEvent,
  type DescribeResponse,
  type ExecuteRequest,
  type MessageInitShape,
  type Result,
  StartedSchema,
  type StateSchema,
} from "@dragoman/client/v1";

import { cutText } from "./fields.js";
import type { EventLog } from "./eventlog.js";
import { fitEvent, redactEvent } from "./outgoing.js";
import { HARMLESS } from "./redact/redactor.js";
import { limitsOf, type Settings } from "./settings.js";
import { outputOf, Texts } from "./texts.js";
import type { RunSpan } from "./trace.js";

/** The body of an event, as it is made. */
export type EventBody = NonNullable<MessageInitShape<typeof AgentEventSchema>["body"]> & { case: string };

/** Where a run is in the order of events. */
type Phase = "initial" | "attempt" | "ended";

/** Writes the events of a run: in their order, redacted, within their bounds, counted. */
export class Recorder {
  readonly log: EventLog;
  readonly counters = create(RunCountersSchema);
  phase: Phase = "initial";
  /** Milliseconds, of `performance.now()`. */
  writtenAt = performance.now();
  /** Whether output is counted where it is read. */
  isPiped = false;
  /** Whether the limit of output was reached. */
  isCut = false;
  readonly #request: ExecuteRequest;
  readonly #settings: Settings;
  readonly #span: RunSpan;
  readonly #texts: Texts;
  readonly #waiting: MessageInitShape<typeof NoticeSchema>[] = []; // for the attempt that opens next
  readonly #calls = new Set<string>(); // tool calls that were counted
  #attempt: number;
  #budget: number; // bytes of output that are left

  constructor(request: ExecuteRequest, settings: Settings, log: EventLog, span: RunSpan) {
    this.#request = request;
    this.#settings = settings;
    this.log = log;
    this.#span = span;
    this.#texts = new Texts(settings.redactor);
    this.#attempt = Math.max(request.relay?.firstAttempt ?? 0, 1) - 1;
    this.#budget = settings.outputBytes || Number.POSITIVE_INFINITY;
  }

  /** Opens the attempt. */
  start(own: MessageInitShape<typeof StartedSchema>, described: DescribeResponse): void {
    const { session } = this.#settings;
    const started = create(StartedSchema, {
      sessionDisposition: session.disposition,
      sessionReason: session.reason,
      nativeSessionId: session.nativeId,
      promptBytes: { prompt: BigInt(Buffer.byteLength(this.#settings.prompt)) },
      ...plain(own),
      adapter: described.adapter,
      instanceId: described.instanceId,
      cwd: this.#settings.cwd,
      labels: { ...this.#request.labels },
      limits: limitsOf(this.#settings),
      capabilities: described.capabilities && clone(CapabilitiesSchema, described.capabilities),
      permissions: this.#request.permissions && clone(PermissionsSchema, this.#request.permissions),
    });
    this.#attempt += 1;
    this.phase = "attempt";
    this.write({ case: "started", value: started }, EventOrigin.ADAPTER);
    this.state({ phase: RunPhase.STARTING });
    for (const notice of this.#waiting.splice(0)) this.write({ case: "notice", value: notice }, EventOrigin.ADAPTER);
  }

  /** Writes an event of the agent, which is counted and may come in pieces. */
  take(event: AgentEvent): void {
    this.#count(event);
    if (!this.isPiped && !this.#isWithin(event)) return;
    for (const piece of this.#texts.take(event)) this.put(piece);
  }

  /** Writes what is held back of texts. */
  flush(): void {
    for (const piece of this.#texts.flush()) this.put(piece);
  }

  /** Writes an event of the adapter itself. */
  write(body: EventBody, origin: EventOrigin): AgentEvent {
    return this.put(create(AgentEventSchema, { body, origin }));
  }

  state(state: MessageInitShape<typeof StateSchema>): void {
    this.write(
      { case: "state", value: state },
      state.phase === RunPhase.CANCELLING ? EventOrigin.OPERATOR : EventOrigin.ADAPTER,
    );
  }

  /** Writes a message for people. Before an attempt is open, it is kept until one is. */
  notice(severity: Severity, code: string, message: string): void {
    const value = { severity, code, message };
    if (this.phase === "initial") this.#waiting.push(value);
    else this.write({ case: "notice", value }, EventOrigin.ADAPTER);
  }

  /** Writes the result, last. */
  finish(result: Result): AgentEvent {
    this.flush();
    result.counters = this.counters;
    this.phase = "ended";
    const event = this.write({ case: "result", value: result }, EventOrigin.ADAPTER);
    this.log.close();
    return event;
  }

  /** Writes an event in its place, and returns it as it was written. */
  put(event: AgentEvent): AgentEvent {
    const redacted = redactEvent(event, this.#settings.redactor);
    event.sequence = this.log.last + 1n;
    this.address(event);
    const { bytes, cut } = fitEvent(event, redacted);
    this.#span.note(event);
    this.log.append(event, bytes);
    this.writtenAt = performance.now();
    if (cut > 0 && this.phase === "attempt" && event.body.case !== "notice") {
      this.notice(Severity.WARNING, "event_cut", `${cut} bytes of an event were cut, as it has at most 1 MiB.`);
    }
    return event;
  }

  /** Fills in what every event has. */
  address(event: AgentEvent): AgentEvent {
    event.runId = this.#request.runId;
    event.attempt = this.#attempt;
    event.time = timestampNow();
    return event;
  }

  /** Counts output where it is read, and returns what the limit leaves of it. */
  within(data: Buffer): Buffer {
    const kept = data.subarray(0, Math.min(data.length, this.#budget));
    this.#spend(kept.length, data.length);
    return kept;
  }

  /** Returns a text that is cut off, without what may be the first half of a secret. */
  withoutHalf(text: string): string {
    const cut = this.#settings.redactor.undecided(text);
    return text.length - cut > HARMLESS ? text.slice(0, cut) : text;
  }

  #spend(kept: number, wanted: number): void {
    this.#budget -= kept;
    if (kept === wanted) return;
    this.counters.droppedBytes += BigInt(wanted - kept);
    if (this.isCut) return;
    this.isCut = true;
    this.notice(
      Severity.WARNING,
      "output_cut",
      `The agent's output exceeded limits.output_bytes (${this.#settings.outputBytes} bytes); what follows is discarded.`,
    );
  }

  /** Cuts an event's text to what the limit of output leaves; returns false if that is nothing. */
  #isWithin(event: AgentEvent): boolean {
    const output = outputOf(event);
    if (!output || this.#budget === Number.POSITIVE_INFINITY) return true;
    const size = Buffer.byteLength(output.text);
    const kept = cutText(output.text, this.#budget);
    this.#spend(Buffer.byteLength(kept), size);
    if (kept.length === output.text.length) return true;
    const shown = this.withoutHalf(kept);
    output.replace(shown);
    return shown !== "";
  }

  #count({ body }: AgentEvent): void {
    const { counters } = this;
    if (body.case === "toolCall") {
      // emitted again whenever it changes
      this.#calls.add(body.value.id);
      counters.toolCalls = this.#calls.size;
    } else if (body.case === "toolResult") {
      if (body.value.status === ToolStatus.FAILED) counters.failedToolCalls += 1;
      if (body.value.status === ToolStatus.DENIED) counters.deniedToolCalls += 1;
    } else if (body.case === "fileChange") {
      counters.fileChanges += 1;
    } else if (body.case === "state" && body.value.phase === RunPhase.RETRYING) {
      counters.retries += 1;
    } else if (body.case === "log" && body.value.stream === OutputStream.STDOUT) {
      counters.unparsedLines += 1;
    }
  }
}

/** Returns the fields of a message, without what makes it one. */
function plain<T extends object>({ ...fields }: T): Omit<T, "$typeName"> {
  delete (fields as { $typeName?: string }).$typeName;
  return fields;
}
