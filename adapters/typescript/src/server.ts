import { create } from "@bufbuild/protobuf";
import { DragomanError } from "@dragoman/client";
import { fieldError } from "@dragoman/client/grpc";
import {
  AdapterService,
  AuthState,
  CancelResponseSchema,
  DetectRequestSchema,
  DetectResponseSchema,
  DetectionConfidence,
  DetectionSchema,
  EnvironmentCheckSchema,
  Feature,
  InputAnswerSchema,
  ListModelsResponseSchema,
  ListSkillsResponseSchema,
  ModelSource,
  RespondResponseSchema,
  Severity,
  TestEnvironmentResponseSchema,
  TestMode,
  TestStatus,
  durationMs,
  timestampNow,
  type AttachRequest,
  type CancelRequest,
  type CancelResponse,
  type DescribeResponse,
  type DetectRequest,
  type DetectResponse,
  type Detection,
  type EnvironmentCheck,
  type ExecuteRequest,
  type RespondRequest,
  type RespondResponse,
  type TestEnvironmentRequest,
  type TestEnvironmentResponse,
} from "@dragoman/client/v1";
import { Server as GrpcServer } from "@grpc/grpc-js";
import { ReflectionService } from "@grpc/reflection";
import { randomBytes } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";

import { describe, type Adapter, type Log } from "./adapter.js";
import { batched } from "./batches.js";
import {
  definitionFor,
  explainUnknown,
  implementationOf,
  reflected,
  type CallInfo,
  type StreamInfo,
} from "./boundary.js";
import { checkOf, look } from "./detection.js";
import { Reader, SlowReader, type ReaderOptions } from "./eventlog.js";
import { Health } from "./health.js";
import { Holders } from "./holders.js";
import { admission, listen } from "./listen.js";
import { LiveRun } from "./live.js";
import { sentinel } from "./process.js";
import { Schema } from "./schema.js";
import { sessionInUse } from "./sessions.js";
import { directoryProblem, has, settingsOf, type Settings } from "./settings.js";
import { beginSpan, loadApi } from "./spans.js";
import { Store } from "./store.js";
import { traced, type TraceContext } from "./trace.js";

const MIB = 1 << 20;
const FLUSH_MS = 1_000; // that streams may still write once the runs have ended
const DRAIN_MARGIN_MS = 15_000; // after the grace that a run may take to end when the server stops
const RUN_ID_SHAPE = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;

/** Serves one adapter. */
export class Server {
  readonly described: DescribeResponse;
  readonly #adapter: Adapter;
  readonly #log: Log;
  readonly #schema: Schema;
  readonly #store = new Store();
  readonly #holders = new WeakMap<LiveRun, Holders>();
  readonly #grpc: GrpcServer;
  readonly #health = new Health([AdapterService.typeName]);
  readonly #driving = new Set<Promise<void>>();
  readonly #streams = new Set<Promise<void>>();
  readonly #ending = new AbortController(); // ends when the streams do
  #probed: GrpcServer | undefined;
  #isDraining = false;
  #otel: Awaited<ReturnType<typeof loadApi>>;

  /** @throws Error the adapter's description is not valid */
  constructor(adapter: Adapter, log: Log) {
    this.#adapter = adapter;
    this.#log = log;
    this.described = describe(adapter);
    this.#schema = new Schema(this.described.configSchemaJson);
    this.#grpc = new GrpcServer({
      "grpc.max_receive_message_length": 32 * MIB, // above the contract's own limit, so that that one is reported, with a reason
      "grpc.max_send_message_length": 17 * MIB,
      "grpc.keepalive_time_ms": 30_000,
      "grpc.keepalive_timeout_ms": 10_000,
      interceptors: [admission],
    });
    this.#grpc.addService(definitionFor(AdapterService), this.#implementation());
    this.#health.addTo(this.#grpc);
    new ReflectionService(reflected(AdapterService)).addToServer(this.#grpc);
    explainUnknown(this.#grpc);
  }

  /** Listens at an address; see `listen`. */
  async listen(address: string): Promise<void> {
    this.#otel = await loadApi();
    return listen(this.#grpc, address, this.#log, this.#ending.signal);
  }

  /** Answers probes of health in the clear; see `Health.listen`. */
  async serveHealth(address: string): Promise<void> {
    this.#probed = await this.#health.listen(address);
  }

  /** Refuses new runs, and waits until none lives any more, or that long. `stop` comes after it. */
  async drain(limitMs: number): Promise<void> {
    this.#isDraining = true;
    this.#health.shutDown();
    await within(limitMs, this.#driving);
  }

  /** Refuses new runs, stops those that live within a grace, ends the streams with their results, and closes. */
  async stop(graceMs: number): Promise<void> {
    await this.drain(0);
    for (const run of this.#store.live) run.cancel(graceMs, "the adapter is shutting down");
    await within(graceMs + DRAIN_MARGIN_MS, this.#driving);
    await within(FLUSH_MS, this.#streams);
    this.#ending.abort();
    await within(FLUSH_MS, this.#streams);
    // A watcher of health does not leave by itself.
    const closed = new Promise<void>((resolve) => this.#grpc.tryShutdown(() => resolve()));
    await within(FLUSH_MS / 4, [closed]);
    this.#grpc.forceShutdown();
    this.#probed?.forceShutdown();
    await sentinel.close();
  }

  /** Ends the runs at once. */
  hurry(): void {
    for (const run of this.#store.live) run.cancel(0, "the adapter is shutting down");
  }

  /** Returns a text without the secrets of the live runs' requests. */
  redact(text: string): string {
    return this.#store.live.reduce((shown, { settings }) => settings.redactor.text(shown), text);
  }

  #implementation() {
    const named =
      <R extends { adapter: string }, A extends unknown[], O>(answer: (request: R, ...rest: A) => O) =>
      (request: R, ...rest: A): O => {
        this.#checkName(request.adapter);
        return answer(request, ...rest);
      };
    return implementationOf(
      AdapterService,
      {
        describe: named(() => this.described),
        detect: named((request: DetectRequest, call: CallInfo) => this.#detect(request, call.signal)),
        testEnvironment: named((request: TestEnvironmentRequest, call: CallInfo) => this.#test(request, call.signal)),
        execute: named((request: ExecuteRequest, call: StreamInfo) => this.#execute(request, call)),
        attach: named((request: AttachRequest, call: StreamInfo) => this.#attach(request, call)),
        cancel: named((request: CancelRequest, call: CallInfo) => this.#cancel(request, call.signal)),
        respond: named((request: RespondRequest, call: CallInfo) => this.#respond(request, call.caller)),
        listModels: named(() =>
          create(ListModelsResponseSchema, { models: this.described.models, source: ModelSource.STATIC }),
        ),
        listSkills: named(() => create(ListSkillsResponseSchema)),
      },
      this.#log,
    );
  }

  #checkName(name: string): void {
    const { adapter, aliases } = this.described;
    if (name === "" || name === adapter || aliases.includes(name)) return;
    throw new DragomanError("ADAPTER_NOT_FOUND", `this sidecar serves ${adapter}, not ${JSON.stringify(name)}`, {
      metadata: { adapter: name, did_you_mean: adapter },
    });
  }

  async #detect(request: DetectRequest, signal: AbortSignal): Promise<DetectResponse> {
    const { adapter, label, capabilities } = this.described;
    const found: Detection =
      (await look(this.#adapter, request, signal)) ??
      create(DetectionSchema, {
        available: true,
        auth: AuthState.NOT_NEEDED,
        confidence: DetectionConfidence.NOT_APPLICABLE,
        message: `${label} needs no agent.`,
      });
    Object.assign(found, {
      adapter,
      label,
      detectedAt: timestampNow(),
      capabilities: found.capabilities ?? capabilities,
    });
    return create(DetectResponseSchema, { detections: [found] });
  }

  async #test(request: TestEnvironmentRequest, signal: AbortSignal): Promise<TestEnvironmentResponse> {
    const checks: EnvironmentCheck[] = [];
    const add = (level: Severity, code: string, message: string) =>
      checks.push(create(EnvironmentCheckSchema, { code, level, message }));
    const config = request.config ?? {};
    const wrong = this.#schema.check(config);
    for (const { field, description } of wrong) add(Severity.ERROR, "config_invalid", `${field}: ${description}`);
    if (wrong.length === 0) add(Severity.INFO, "config_valid", "The settings are valid.");
    if (has(this.described, Feature.WORKSPACE)) {
      const configured = config["cwd"];
      const problem = directoryProblem(request.workspace?.cwd || (typeof configured === "string" ? configured : ""));
      if (problem) add(Severity.ERROR, "cwd_invalid", problem);
      else add(Severity.INFO, "cwd_valid", "The working directory can be used.");
    }
    const { config: asked, env } = request;
    const found = await look(this.#adapter, create(DetectRequestSchema, { config: asked, env }), signal);
    if (found) checks.push(checkOf(found));
    const more = (await this.#adapter.checks?.(request, signal)) ?? [];
    checks.push(...more.map((check) => create(EnvironmentCheckSchema, check)));
    const levels = checks.map(({ level }) => level);
    const status = levels.includes(Severity.ERROR)
      ? TestStatus.FAIL
      : levels.includes(Severity.WARNING)
        ? TestStatus.WARN
        : TestStatus.PASS;
    const mode = request.mode || TestMode.QUICK;
    return create(TestEnvironmentResponseSchema, {
      adapter: this.described.adapter,
      status,
      checks,
      testedAt: timestampNow(),
      mode,
    });
  }

  /** Starts a run, or joins the one that has this ID and this request; then it streams the run. */
  async #execute(request: ExecuteRequest, call: StreamInfo): Promise<void> {
    request.runId ||= `run-${randomBytes(12).toString("hex")}`;
    if (!RUN_ID_SHAPE.test(request.runId)) {
      throw fieldError("INVALID_REQUEST", {
        field: "run_id",
        description: "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}",
      });
    }
    const run = this.#store.join(request, () => this.#accept(request, call.trace));
    call.accept(request.runId);
    const after = (run.request.relay?.firstSequence || 1n) - 1n;
    await this.#follow(run, call, { after, holds: true, replayDone: false }, request.batching !== undefined);
  }

  async #attach(request: AttachRequest, call: StreamInfo): Promise<void> {
    const run = this.#store.find(request.runId);
    const options = { after: request.afterSequence, holds: request.hold, replayDone: true };
    await this.#follow(run, call, options, request.batching !== undefined);
  }

  /** Checks a request and begins its run. */
  #accept(request: ExecuteRequest, trace: TraceContext): LiveRun {
    if (this.#isDraining) throw draining();
    const settings = settingsOf(request, this.described, this.#schema);
    this.#refuseBusySession(settings);
    this.#adapter.accept?.(request);
    const span = beginSpan(this.#otel, this.described.adapter, request, trace);
    const run = new LiveRun(request, settings, this.described, span);
    const orphanAfterMs = request.orphanAfter ? durationMs(request.orphanAfter) : 0;
    const holders = new Holders(orphanAfterMs, () => run.cancel(settings.graceMs, "no client is attached"));
    this.#holders.set(run, holders);
    tracked(
      this.#driving,
      run.drive(this.#adapter, traced(this.#log, span.trace)).finally(() => {
        holders.close();
        this.#store.retire(run);
      }),
    );
    return run;
  }

  /** Two runs in one session would mix up what was said in it. */
  #refuseBusySession(settings: Settings): void {
    const session = sessionInUse(settings.session);
    const other = this.#store.live.find((run) => session !== "" && sessionInUse(run.settings.session) === session);
    if (!other) return;
    const id = other.request.runId;
    throw new DragomanError(
      "SESSION_BUSY",
      `run ${JSON.stringify(id)} uses this session; wait for it, or fork the session`,
      { metadata: { run_id: id } },
    );
  }

  async #cancel(request: CancelRequest, signal: AbortSignal): Promise<CancelResponse> {
    const run = this.#store.find(request.runId);
    run.cancel(request.grace ? durationMs(request.grace) : run.settings.graceMs, request.reason);
    while (!run.isOver && !signal.aborted) await run.log.changes.wait(signal);
    const { outcome = 0, treeConfirmedDead } = run.result ?? {};
    return create(CancelResponseSchema, { outcome, resultSequence: run.resultAt, treeConfirmedDead });
  }

  #respond(request: RespondRequest, caller: string): RespondResponse {
    const run = this.#store.find(request.runId);
    const sequence = run.inputs.answer(
      request.requestId,
      request.answer ?? create(InputAnswerSchema),
      request.responder || caller,
    );
    return create(RespondResponseSchema, { sequence });
  }

  /** Writes the events of a run, until it is over. */
  async #follow(run: LiveRun, call: StreamInfo, options: ReaderOptions, isBatching: boolean): Promise<void> {
    if (options.after > run.log.last) {
      const last = String(run.log.last);
      throw new DragomanError(
        "SEQUENCE_AHEAD",
        `after_sequence ${options.after} is past the end; the last is ${last}`,
        { metadata: { last_sequence: last } },
      );
    }
    if (options.holds) this.#holders.get(run)?.acquire();
    let isServers = false;
    const stream = this.#write(run, call, options, isBatching);
    tracked(this.#streams, stream);
    try {
      await stream;
    } catch (error) {
      isServers = error instanceof DragomanError;
      throw error;
    } finally {
      if (options.holds) this.#holders.get(run)?.release(isServers);
    }
  }

  async #write(run: LiveRun, call: StreamInfo, options: ReaderOptions, isBatching: boolean): Promise<void> {
    const reader = new Reader(run.log, options, run.pending());
    const signal = AbortSignal.any([call.signal, this.#ending.signal]);
    let written = options.after;
    const interrupted = (reason: "SLOW_CONSUMER" | "DRAINING", message: string) =>
      new DragomanError(reason, message, {
        metadata: { last_sequence: String(written) },
        retryAfterMs: reason === "DRAINING" ? 1000 : undefined,
      });
    try {
      for (;;) {
        const events = await reader.next(signal);
        if (call.signal.aborted) return;
        if (this.#ending.signal.aborted) throw interrupted("DRAINING", "this server is shutting down");
        if (events.length === 0) return;
        for (const message of isBatching ? batched(events) : events.map(({ bytes }) => bytes)) await call.send(message);
        written = reader.cursor;
      }
    } catch (error) {
      if (error instanceof SlowReader) {
        throw interrupted("SLOW_CONSUMER", `this stream's reader was too slow; attach again after sequence ${written}`);
      }
      throw error;
    } finally {
      reader.close();
    }
  }
}

function draining(): DragomanError {
  return new DragomanError("DRAINING", "this server is shutting down", { retryAfterMs: 1000 });
}

function tracked(set: Set<Promise<void>>, promise: Promise<void>): void {
  const ended = promise.catch(() => {}).finally(() => set.delete(ended)); // its maker handles the error
  set.add(ended);
}

/** Waits for promises, but no longer than so many milliseconds. */
async function within(ms: number, promises: Iterable<Promise<unknown>>): Promise<void> {
  const over = new AbortController();
  await Promise.race([Promise.allSettled(promises), delay(ms, undefined, { signal: over.signal }).catch(() => {})]);
  over.abort();
}
