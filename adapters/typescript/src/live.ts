import { create } from "@bufbuild/protobuf";
import {
  AgentEventSchema,
  EventOrigin,
  FailureKind,
  Outcome,
  ResultSchema,
  RunPhase,
  durationFromMs,
  type AgentEvent,
  type DescribeResponse,
  type ExecuteRequest,
  type MessageInitShape,
  type Result,
} from "@dragoman/client/v1";
import { AsyncLocalStorage } from "node:async_hooks";
import { randomBytes } from "node:crypto";
import { rmSync } from "node:fs";
import { chmod, readdir } from "node:fs/promises";
import { join } from "node:path";

import { programOf, type Adapter, type Log } from "./adapter.js";
import { Clocks } from "./clocks.js";
import { EventLog } from "./eventlog.js";
import { Failure, failureOf, placeOf, textOf } from "./failure.js";
import { Inputs } from "./inputs.js";
import type { Child } from "./process.js";
import { Recorder } from "./recorder.js";
import { Run } from "./run.js";
import { completeSession } from "./sessions.js";
import type { Settings } from "./settings.js";
import { RunStopped, Stop } from "./stop.js";
import type { RunSpan } from "./trace.js";

const HEARTBEAT_AFTER_MS = 15_000;
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const FLUSH_MS = 1_000; // that an adapter may take beyond its grace
const KILL_MARGIN_MS = 12_000; // the same while its program is being killed

/** How a run ended, of what its adapter returned or threw. */
type Outcomes = { result: MessageInitShape<typeof ResultSchema> | undefined } | { error: unknown };

/** The run whose adapter's code is executed, also where that is not awaited. */
export const current = new AsyncLocalStorage<LiveRun>();

/** A run, as the server sees it. */
export class LiveRun {
  readonly request: ExecuteRequest;
  readonly settings: Settings;
  readonly described: DescribeResponse;
  readonly span: RunSpan;
  readonly log: EventLog;
  readonly recorder: Recorder;
  readonly clocks: Clocks;
  readonly inputs: Inputs;
  readonly stop = new Stop();
  /** Marks all processes of the run. */
  readonly marker = randomBytes(16).toString("hex");
  readonly #acceptedAt = performance.now();
  /** When the agent said something last. */
  heardAt = performance.now();
  /** For this run alone; made when it is asked for. */
  directory: string | undefined;
  /** The programs that run, each with its end. */
  readonly programs = new Map<Child, Promise<unknown>>();
  /** Whether all that the programs which have ended started is gone; undefined: none has. */
  isConfirmed: boolean | undefined;
  result: Result | undefined;
  resultAt = 0n;
  /** Ends the run, whose adapter awaits no longer what has failed. */
  fail: (error: unknown) => void = () => {};
  #timer: NodeJS.Timeout | undefined;

  constructor(request: ExecuteRequest, settings: Settings, described: DescribeResponse, span: RunSpan) {
    const first = request.relay?.firstSequence || 1n;
    this.request = request;
    this.settings = settings;
    this.described = described;
    this.span = span;
    this.log = new EventLog(request.runId, first);
    this.recorder = new Recorder(request, settings, this.log, span);
    this.clocks = new Clocks(settings, this.#acceptedAt);
    const run = this;
    this.inputs = new Inputs(
      {
        get isOver() {
          return run.isOver;
        },
        write: (event) => run.recorder.put(event),
        waits: (isWaiting) => run.#waits(isWaiting),
      },
      request.permissions?.requestTimeout,
    );
  }

  get isOver(): boolean {
    return this.result !== undefined;
  }

  /** Does the run, and ends it whatever its adapter does. */
  async drive(adapter: Adapter, log: Log): Promise<void> {
    log("info", "run accepted", { run_id: this.request.runId });
    this.watch();
    const fault = new Promise<never>((_, reject) => {
      this.fail = reject;
    });
    const run = this.span.within(() =>
      current.run(this, async () => adapter.run(new Run(this, programOf(adapter, this.settings.config)))),
    );
    const own: Promise<Outcomes> = Promise.race([run, fault]).then(
      (result) => ({ result: result ?? undefined }),
      (error: unknown) => ({ error }),
    );
    const ended = own.then(async (outcome) => {
      await this.#endPrograms(); // none outlives its run
      return outcome;
    });
    const abandoned = new Promise<"abandoned">((resolve) => {
      let timer: NodeJS.Timeout;
      this.stop.onDeadline((deadline) => {
        clearTimeout(timer);
        const margin = this.programs.size > 0 ? KILL_MARGIN_MS : FLUSH_MS;
        timer = setTimeout(() => resolve("abandoned"), deadline + margin - performance.now());
        void ended.then(() => clearTimeout(timer));
      });
    });
    let outcome: Outcomes | "abandoned" = await Promise.race([ended, abandoned]);
    if (outcome === "abandoned") {
      log("warning", "the adapter did not stop its run in time", { run_id: this.request.runId });
      outcome = { result: undefined };
    }
    const logFault = (error: unknown) =>
      log("error", "the adapter failed", {
        run_id: this.request.runId,
        error: this.settings.redactor.text(textOf(error)),
      });
    if ("error" in outcome && !(outcome.error instanceof Failure) && !(outcome.error instanceof RunStopped))
      logFault(outcome.error);
    await this.#removeDirectory(log);
    try {
      this.#finish(this.#conclude(outcome));
    } catch (error) {
      logFault(error); // what the adapter returned is no result
      this.#finish(this.#conclude({ error }));
    }
    log("info", "run ended", { run_id: this.request.runId, outcome: Outcome[this.result?.outcome ?? 0] ?? "" });
  }

  /** Stops the programs that still run when the adapter has returned. */
  async #endPrograms(): Promise<void> {
    if (this.programs.size === 0) return;
    this.clocks.areOff = true;
    if (!this.stop.isRequested) for (const child of this.programs.keys()) child.stop(this.settings.graceMs);
    await Promise.allSettled(this.programs.values());
  }

  /** Requests the run's end within a grace. A later, shorter grace shortens it. */
  cancel(graceMs: number, reason: string): void {
    if (this.isOver) return;
    const isFirst = !this.stop.isRequested;
    if (isFirst && !this.clocks.areOff) this.stop.isCancelled = true; // else the agent has ended by itself
    if (isFirst && this.recorder.phase === "attempt") this.recorder.state({ phase: RunPhase.CANCELLING, reason });
    this.#stopBy(graceMs, new RunStopped("cancelled"));
  }

  #stopBy(graceMs: number, reason: RunStopped): void {
    this.log.unpause();
    this.stop.by(performance.now() + graceMs, reason);
    this.inputs.dropAll(); // no answers are awaited any more
  }

  /** Keeps the limits, and sends heartbeats, until the run has ended. To be called again when a limit has changed. */
  watch(): void {
    clearTimeout(this.#timer);
    if (this.isOver) return;
    this.#timer = setTimeout(() => this.watch(), Math.min(this.#due(performance.now()), LONGEST_TIMER_MS));
  }

  /** Does what is due, and returns the milliseconds until something is again. */
  #due(now: number): number {
    const { recorder } = this;
    if (now - recorder.writtenAt >= HEARTBEAT_AFTER_MS) {
      const value = { lastSequence: this.log.last, idle: durationFromMs(Math.round(now - this.heardAt)) };
      this.log.send(
        recorder.address(create(AgentEventSchema, { body: { case: "heartbeat", value }, origin: EventOrigin.ADAPTER })),
      );
      recorder.writtenAt = now;
    }
    const beat = recorder.writtenAt + HEARTBEAT_AFTER_MS;
    const limit = this.stop.isRequested ? undefined : this.clocks.next();
    if (limit && limit.at > now) return Math.max(Math.min(beat, limit.at) - now, 1);
    if (limit) {
      this.stop.expiry = limit;
      this.#stopBy(this.settings.graceMs, new RunStopped("limit"));
    }
    return Math.max(beat - now, 1);
  }

  #waits(isWaiting: boolean): void {
    const now = performance.now();
    if (isWaiting) this.clocks.wait(now);
    else this.clocks.resume(now);
    if (!this.stop.isRequested && !this.isOver) {
      this.recorder.state({ phase: isWaiting ? RunPhase.WAITING_FOR_INPUT : RunPhase.RUNNING });
    }
    this.watch();
  }

  /** Waits while the callers that hold the run are far behind. That time is not the agent's. */
  async pace(): Promise<void> {
    if (!this.log.isBehind) return;
    this.clocks.wait(performance.now());
    await this.log.taken();
    this.clocks.resume(performance.now());
    this.watch();
  }

  /** The open questions as events, for a reader that attaches. */
  pending(): AgentEvent[] {
    return this.inputs.pending.map((value) =>
      this.recorder.address(
        create(AgentEventSchema, { body: { case: "inputRequest", value }, origin: EventOrigin.ADAPTER }),
      ),
    );
  }

  #conclude(outcome: Outcomes): Result {
    const own = "result" in outcome ? outcome.result : undefined;
    const error = "error" in outcome ? outcome.error : undefined;
    const result = create(ResultSchema, own ?? { outcome: Outcome.SUCCEEDED });
    const isDefault = own === undefined && error === undefined;
    const fail = (kind: FailureKind, code: string, message: string, how = Outcome.FAILED) =>
      Object.assign(result, { outcome: how, failure: failureOf(kind, code, message) });
    if (result.outcome === Outcome.SUCCEEDED && error === undefined && !(isDefault && this.stop.isRequested)) {
      result.failure = undefined;
      return result;
    }
    if (this.stop.isCancelled) return Object.assign(result, { outcome: Outcome.CANCELLED, failure: undefined });
    if (this.stop.expiry) {
      const { kind, code, message } = this.stop.expiry;
      return fail(kind, code, message, Outcome.TIMED_OUT);
    }
    if (error instanceof Failure) return fail(error.kind, error.code, error.message);
    if (error !== undefined) {
      const message = `The adapter failed (${placeOf(error)}). Its log has more under this run's ID.`;
      return fail(FailureKind.INTERNAL, "adapter_failed", message);
    }
    if (isDefault) return result; // it was stopped after the agent had ended
    return result.failure
      ? result
      : fail(FailureKind.INTERNAL, "no_reason", "The adapter did not say why the run failed.");
  }

  /** Writes the result, last. */
  #finish(result: Result): void {
    if (this.recorder.phase === "initial") this.recorder.start({}, this.described); // a run that failed before its first attempt has one too
    this.inputs.dropAll();
    completeSession(result, this.described, this.settings.cwd);
    if (this.isConfirmed === false || this.programs.size > 0) result.treeConfirmedDead = false;
    else result.treeConfirmedDead ??= this.isConfirmed;
    result.duration = durationFromMs(Math.round(performance.now() - this.#acceptedAt));
    const event = this.recorder.finish(result);
    this.result = event.body.value as Result;
    this.resultAt = event.sequence;
    this.stop.end();
    clearTimeout(this.#timer);
  }

  async #removeDirectory(log: Log): Promise<void> {
    if (this.directory === undefined) return;
    const remove = () => rmSync(this.directory as string, { recursive: true, force: true, maxRetries: 2 });
    try {
      remove();
    } catch {
      try {
        await unlock(this.directory); // an agent may leave directories that even their owner cannot enter
        remove();
      } catch (error) {
        log("warning", "the run's directory is left", { run_id: this.request.runId, error: String(error) });
      }
    }
  }
}

async function unlock(directory: string): Promise<void> {
  await chmod(directory, 0o700);
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    if (entry.isDirectory()) await unlock(join(directory, entry.name));
  }
}
