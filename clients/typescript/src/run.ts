import { clone, create, type Message, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { status, type ClientReadableStream, type Metadata, type MethodDefinition } from "@grpc/grpc-js";
import { setTimeout as delay } from "node:timers/promises";

import type { Client, Link } from "./client.js";
import { DragomanError, type Reason } from "./errors.js";
import {
  AdapterService,
  AttachRequestSchema,
  BatchingSchema,
  type AttachRequest,
  type CancelResponse,
  type ExecuteRequest,
  type RespondResponse,
} from "./gen/dragoman/v1/adapter_pb.js";
import type { AgentEvent, InputAnswerSchema, Result } from "./gen/dragoman/v1/event_pb.js";
import { definitionOfMethod, messagesOf, openStream } from "./grpc.js";

const RUN_ID_KEY = "dragoman-run-id";
const FIRST_DELAY_MS = 50;
const LONGEST_DELAY_MS = 1_000;

const EXECUTE = definitionOfMethod(AdapterService.method.execute);
const ATTACH = definitionOfMethod(AdapterService.method.attach);

/**
 * The events of one run, for one reader. It survives broken connections: after one it attaches after the last
 * sequence; before the first event it sends the same request again, which is idempotent. Events that are no longer
 * stored are reported by a `gap`. Batches are unrolled, and no event with a sequence comes twice.
 *
 * Leaving the loop detaches from the run, and does not cancel it: it continues for `orphanAfter`.
 */
export class Run implements AsyncIterable<AgentEvent> {
  readonly #client: Client;
  readonly #stream: ReconnectingStream;
  readonly #seen: Seen;
  readonly #adapter: string;
  #ready: AgentEvent[] = [];

  /** For `Client.execute` and `Client.attach`, which call it with requests of their own. */
  constructor(link: Link, client: Client, requests: Requests) {
    this.#client = client;
    this.#adapter = requests.attach.adapter;
    this.#seen = new Seen(requests.attach.afterSequence, requests.execute === undefined);
    this.#stream = new ReconnectingStream(link, requests, this.#seen, (runId) => client.router.getRun({ runId }));
  }

  /** The ID of the run. */
  get id(): string {
    return this.#stream.runId;
  }

  /** The last sequence that was received; a later `attach` can continue after it. */
  get lastSequence(): bigint {
    return this.#seen.lastSequence;
  }

  /** How the run ended; undefined until that was received. */
  get result(): Result | undefined {
    return this.#seen.result;
  }

  /** Waits until the server has accepted the run, and returns its ID: from then on the run exists. */
  async accepted(): Promise<string> {
    while (!this.#stream.isAccepted) this.#ready.push(...(await this.#stream.step()));
    return this.id;
  }

  /** Reads all events that are left, and returns how the run ended. */
  async wait(): Promise<Result> {
    while (await this.#next()) {
      /* its events are of no interest */
    }
    return this.#seen.result as Result;
  }

  async *[Symbol.asyncIterator](): AsyncIterator<AgentEvent> {
    try {
      for (let event = await this.#next(); event; event = await this.#next()) yield event;
    } finally {
      this.close();
    }
  }

  /**
   * Cancels the run, and answers once its result is recorded.
   *
   * @param options `graceMs`: milliseconds that the agent gets to stop by itself; absent: the run's own, 0: it is
   * killed at once
   */
  cancel(options: { graceMs?: number; reason?: string } = {}): Promise<CancelResponse> {
    const { graceMs, reason = "" } = options;
    const grace = graceMs === undefined ? undefined : durationFromMs(graceMs);
    return this.#client.cancel({ runId: this.id, adapter: this.#adapter, reason, grace });
  }

  /** Answers an input request of the run. */
  respond(
    requestId: string,
    answer: MessageInitShape<typeof InputAnswerSchema>,
    responder = "",
  ): Promise<RespondResponse> {
    return this.#client.respond({ runId: this.id, requestId, answer, responder, adapter: this.#adapter });
  }

  /** Detaches from the run. Without another client it is orphaned, and cancelled after `orphanAfter`. */
  close(): void {
    this.#stream.close();
  }

  /** Returns the next event; undefined after the result. */
  async #next(): Promise<AgentEvent | undefined> {
    while (this.#ready.length === 0) {
      if (this.#seen.result) {
        this.close();
        return undefined;
      }
      this.#ready.push(...(await this.#stream.step()));
    }
    return this.#ready.shift();
  }
}

/** What a run is followed by. */
export interface Requests {
  attach: AttachRequest;
  /** Absent: the run exists already. */
  execute?: ExecuteRequest;
  /** Ends the stream. */
  signal?: AbortSignal;
}

/** A stream of events that is opened again when it breaks. */
class ReconnectingStream {
  readonly #link: Link;
  readonly #requests: Requests;
  readonly #seen: Seen;
  readonly #reconnect: Reconnect;
  readonly #getRun: (runId: string) => Promise<unknown>;
  #stream: ClientReadableStream<AgentEvent> | undefined;
  #messages: AsyncIterator<AgentEvent, undefined> | undefined;
  #isAccepted = false;

  constructor(link: Link, requests: Requests, seen: Seen, getRun: (runId: string) => Promise<unknown>) {
    this.#link = link;
    this.#requests = requests;
    this.#seen = seen;
    this.#getRun = getRun;
    this.#reconnect = new Reconnect(link.reattachMs);
    this.#setBatching(!link.rejectsBatches);
  }

  get runId(): string {
    return this.#requests.attach.runId;
  }

  get isAccepted(): boolean {
    return this.#isAccepted;
  }

  /**
   * Opens a stream if none is open, else receives a message; if the stream broke it waits before the next one.
   * Returns new events.
   */
  async step(): Promise<AgentEvent[]> {
    try {
      if (!this.#messages) {
        await this.#open();
        return [];
      }
      const { value, done } = await this.#messages.next();
      if (done) {
        throw new DragomanError(
          undefined,
          `the server ended the stream of ${this.runId} without a result`,
          {},
          status.INTERNAL,
        );
      }
      this.#accept();
      const { events, isProgress } = this.#seen.take(value);
      if (isProgress) this.#reconnect.progressed();
      return events;
    } catch (error) {
      this.close();
      await this.#failed(this.#link.convert(error));
      return [];
    }
  }

  close(): void {
    this.#stream?.cancel();
    this.#stream = this.#messages = undefined;
  }

  async #open(): Promise<void> {
    const { execute, signal } = this.#requests;
    signal?.throwIfAborted();
    await this.#link.connected();
    const attach = clone(AttachRequestSchema, this.#requests.attach);
    attach.afterSequence = this.#seen.lastSequence;
    const stream = execute && !(await this.#mustAttach()) ? this.#call(EXECUTE, execute) : this.#call(ATTACH, attach);
    this.#stream = stream;
    this.#messages = messagesOf(stream);
    const id = (await headerOf(stream))?.get(RUN_ID_KEY)[0];
    if (id === undefined) return;
    this.#requests.attach.runId = String(id);
    this.#accept();
  }

  #call<I extends Message>(definition: MethodDefinition<I, AgentEvent>, request: I): ClientReadableStream<AgentEvent> {
    const { signal } = this.#requests;
    const stream = openStream(this.#link.grpc, definition, request, this.#link.metadata);
    const cancel = () => stream.cancel();
    signal?.addEventListener("abort", cancel, { once: true });
    stream.once("close", () => signal?.removeEventListener("abort", cancel));
    return stream;
  }

  /** Returns whether the run is continued by Attach, and not by sending its request again. */
  async #mustAttach(): Promise<boolean> {
    if (this.#seen.lastSequence > 0n) return true;
    if (!this.#isAccepted) return false;
    // A router that stopped before it dispatched a run leaves one that starts anew by the same request. An adapter
    // forgets its runs when it stops, and would start the run twice; it does not know GetRun.
    try {
      await this.#getRun(this.runId);
      return false;
    } catch (error) {
      if (this.#link.convert(error).code === status.UNIMPLEMENTED) return true;
      throw error;
    }
  }

  #accept(): void {
    this.#isAccepted = true;
    this.#link.reached();
  }

  #setBatching(isRequested: boolean): void {
    const batching = isRequested ? create(BatchingSchema) : undefined;
    this.#requests.attach.batching = batching;
    if (this.#requests.execute) this.#requests.execute.batching = batching;
  }

  /** Decides what follows a failed call: it waits before the next one, or throws the error. */
  async #failed(error: DragomanError): Promise<void> {
    const { signal, attach } = this.#requests;
    if (signal?.aborted) throw error;
    if (
      attach.batching &&
      error.reason === "NOT_SUPPORTED" &&
      error.violations.some(({ field }) => field === "batching")
    ) {
      this.#link.rejectsBatches = true;
      this.#setBatching(false);
      return;
    }
    const { cause } = this.#reconnect;
    this.#reconnect.cause ??= error;
    if (
      cause &&
      this.#isAccepted &&
      this.#seen.lastSequence === 0n &&
      error.reason === "RUN_NOT_FOUND" &&
      isVerdict(cause)
    ) {
      throw cause; // the run was rejected after it was accepted: it is no longer known
    }
    if (!this.#mayReconnect(error, cause !== undefined)) throw error;
    const pause = this.#reconnect.nextDelay(error.retryAfterMs ?? 0);
    if (pause === undefined) {
      const message = `the stream of ${this.runId} broke, and reconnecting failed for ${this.#link.reattachMs} ms: ${error.message}`;
      throw error.with(message, { run_id: this.runId });
    }
    await delay(pause, undefined, { signal });
  }

  /** Returns whether an error is about the stream, and not about the run. */
  #mayReconnect(error: DragomanError, isInDoubt: boolean): boolean {
    const is = (...reasons: Reason[]) => error.reason !== undefined && reasons.includes(error.reason);
    if (error.reason === undefined) {
      // RST_STREAM, GOAWAY, a broken connection, a proxy's time limit.
      const statuses = [
        status.UNAVAILABLE,
        status.INTERNAL,
        status.UNKNOWN,
        status.CANCELLED,
        status.DEADLINE_EXCEEDED,
      ];
      return this.#link.isReached && statuses.includes(error.code);
    }
    if (this.#isAccepted)
      return is("SLOW_CONSUMER", "DRAINING", "INTERNAL", "ADAPTER_UNAVAILABLE", "RUN_LOG_UNAVAILABLE");
    // With the ID of a run, the run exists, and its router is unreachable.
    if (is("ADAPTER_UNAVAILABLE")) return error.metadata["run_id"] !== undefined;
    return isInDoubt && is("DRAINING", "RUN_LOG_UNAVAILABLE");
  }
}

function isVerdict(error: DragomanError): boolean {
  return error.reason !== undefined && error.reason !== "DRAINING" && error.reason !== "RUN_LOG_UNAVAILABLE";
}

/** Waits for the initial metadata; undefined if the call ended without, which its reader learns. */
function headerOf(stream: ClientReadableStream<AgentEvent>): Promise<Metadata | undefined> {
  return new Promise((resolve) => {
    stream.once("metadata", resolve);
    stream.once("status", () => resolve(undefined));
    stream.once("error", () => resolve(undefined));
  });
}

/** When to reconnect. */
class Reconnect {
  readonly #limitMs: number;
  /** Why the stream broke, until there is progress. */
  cause: DragomanError | undefined;
  #deadline: number | undefined;
  #tries = 0;

  constructor(limitMs: number) {
    this.#limitMs = limitMs;
  }

  progressed(): void {
    this.cause = this.#deadline = undefined;
    this.#tries = 0;
  }

  /** Returns the milliseconds before the next try; undefined if there is none in time. */
  nextDelay(atLeastMs: number): number | undefined {
    const now = performance.now();
    this.#deadline ??= now + this.#limitMs;
    const left = this.#deadline - now;
    if (left <= 0) return undefined;
    const longest = Math.min(FIRST_DELAY_MS * 2 ** Math.min(this.#tries, 10), LONGEST_DELAY_MS);
    this.#tries += 1;
    const jittered = longest / 2 + Math.random() * (longest / 2); // spreads the load of clients that lost one server together
    return Math.min(Math.max(jittered, atLeastMs), left);
  }
}

/** What the caller has had of a run. */
class Seen {
  lastSequence: bigint;
  result: Result | undefined;
  #wantsReplayDone: boolean;
  readonly #requested = new Set<string>(); // every Attach repeats the input requests that are open

  constructor(afterSequence: bigint, wantsReplayDone: boolean) {
    this.lastSequence = afterSequence;
    this.#wantsReplayDone = wantsReplayDone;
  }

  /** Returns the events of a message that are new. */
  take(message: AgentEvent): { events: AgentEvent[]; isProgress: boolean } {
    const events = message.body.case === "batch" ? message.body.value.events : [message];
    const fresh = events.filter((event) => !this.result && this.#isNew(event));
    const isProgress = fresh.some(({ body }) => body.case !== "gap" && body.case !== "replayDone");
    return { events: fresh, isProgress };
  }

  #isNew(event: AgentEvent): boolean {
    const { body, sequence } = event;
    if (body.case === "result") {
      this.result = body.value; // it comes again for a reader that attaches at the end
      if (sequence > this.lastSequence) this.lastSequence = sequence;
      return true;
    }
    if (sequence > 0n) {
      if (sequence <= this.lastSequence) return false;
      this.lastSequence = sequence;
      if (body.case === "inputRequest") this.#requested.add(body.value.id);
      if (body.case === "inputResolved") this.#requested.delete(body.value.id);
      return true;
    }
    if (body.case === "gap") {
      if (body.value.toSequence > this.lastSequence) this.lastSequence = body.value.toSequence;
    } else if (body.case === "inputRequest") {
      if (this.#requested.has(body.value.id)) return false;
      this.#requested.add(body.value.id);
    } else if (body.case === "replayDone") {
      const isWanted = this.#wantsReplayDone;
      this.#wantsReplayDone = false;
      return isWanted;
    }
    return true;
  }
}
