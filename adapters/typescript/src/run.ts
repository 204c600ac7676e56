import { create } from "@bufbuild/protobuf";
import {
  AgentEventSchema,
  EventOrigin,
  InputAnswerSchema,
  InputKind,
  InputOptionKind,
  InputResolution,
  InputSubjectSchema,
  Severity,
  type AgentEvent,
  type ExecuteRequest,
  type InputSubject,
  type JsonObject,
  type MessageInitShape,
  type StartedSchema,
} from "@dragoman/client/v1";
import { mkdirSync, mkdtempSync, rmdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { failureOf, type Failure } from "./failure.js";
import type { Question, Resolution } from "./inputs.js";
import type { LiveRun } from "./live.js";
import { decide } from "./permissions.js";
import { execute, start, type Command, type Exit, type Line, type Program } from "./process.js";
import type { EventBody } from "./recorder.js";
import type { SessionChoice } from "./sessions.js";
import { layOut } from "./skills.js";

const LONGEST_DIRECTORY = 60; // agents put sockets there, whose paths are short
const OWN = new Set([
  "started",
  "attemptEnded",
  "result",
  "gap",
  "replayDone",
  "heartbeat",
  "batch",
  "inputRequest",
  "inputResolved",
  "inputAccepted",
  "inputDropped",
  "runUpdated",
]);

/** What an agent may do with an action. */
export interface Decision {
  isAllowed: boolean;
  /** What the caller says to the agent; may be empty. */
  message: string;
  /** The tool's input as the caller changed it, as JSON text; empty: unchanged. */
  updatedInputJson: string;
  /** Whether the caller allows or rejects similar actions too, from now on. */
  isForAll: boolean;
}

/** More of an event than its body. */
export type EventExtras = Pick<MessageInitShape<typeof AgentEventSchema>, "lineage" | "native" | "origin">;

/** One run, as its adapter sees it. */
export class Run {
  readonly #live: LiveRun;
  /** As it was sent; it must not be changed. */
  readonly request: ExecuteRequest;
  readonly prompt: string;
  /** The settings, checked against the schema. */
  readonly config: JsonObject;
  /** What to run: the adapter's `program`, or the setting `command`. */
  readonly program: string;
  /** Absolute and existing; empty if the adapter has no FEATURE_WORKSPACE. */
  readonly cwd: string;
  /** Which session to resume. */
  readonly session: SessionChoice;
  /** Ends when the run is to stop; its reason is a `RunStopped`. After the grace the run ends without its adapter. */
  readonly signal: AbortSignal;

  /** For the server. */
  constructor(live: LiveRun, program: string) {
    this.#live = live;
    this.program = program;
    this.request = live.request;
    this.prompt = live.settings.prompt;
    this.config = live.settings.config;
    this.cwd = live.settings.cwd;
    this.session = live.settings.session;
    this.signal = live.stop.signal;
  }

  /**
   * Opens the attempt. Call it before anything of the agent is started, to say what that is: `command`, `argv`,
   * `env`, `notes`, `agentVersion`, how the session is used. The rest is filled in. Without it the first event opens
   * the attempt.
   */
  start(started: MessageInitShape<typeof StartedSchema> = {}): void {
    const { recorder, clocks } = this.#live;
    if (recorder.phase !== "initial") throw new Error("the attempt was started before");
    recorder.start(started, this.#live.described);
    clocks.start(performance.now());
    this.#live.watch();
  }

  /**
   * Ends the attempt, and opens the next one: for a session that is gone.
   *
   * @param started of the next attempt
   */
  retry(failure: Failure, started: MessageInitShape<typeof StartedSchema>): void {
    const { recorder } = this.#live;
    recorder.flush();
    const value = { failure: failureOf(failure.kind, failure.code, failure.message), reason: started.sessionReason };
    recorder.write({ case: "attemptEnded", value }, EventOrigin.ADAPTER);
    recorder.phase = "initial";
    this.start(started);
  }

  /**
   * Writes an event of the agent. Text, thinking and output of tools need no offset: it is counted after redaction,
   * and a piece without content says that its item is complete. Await it: it waits while the callers that hold the
   * run are far behind.
   */
  emit(body: EventBody, extras: EventExtras = {}): Promise<void> {
    if (OWN.has(body.case)) throw new Error(`emit an event ${body.case}: only the server writes it`);
    this.#take(create(AgentEventSchema, { origin: EventOrigin.AGENT, ...extras, body }));
    return this.#live.pace();
  }

  /** Writes a piece of an answer, which continues the item of that name. */
  text(itemId: string, delta: string): Promise<void> {
    return this.emit({ case: "text", value: { itemId, content: { case: "delta", value: delta } } });
  }

  /** Writes a line of output as it is. */
  log(line: Pick<Line, "stream" | "text"> & Partial<Line>): void {
    const { stream, text, raw, cutBytes = 0, isUnterminated } = line;
    const value = { stream, text, raw, truncatedBytes: BigInt(cutBytes), unterminated: isUnterminated };
    this.#take(create(AgentEventSchema, { origin: EventOrigin.AGENT, body: { case: "log", value } }));
  }

  /** Writes a message for people, with a stable code. Before the attempt is open, it is kept until it is. */
  notice(severity: Severity, code: string, message: string): void {
    if (this.#live.recorder.phase !== "ended") this.#live.recorder.notice(severity, code, message);
  }

  /**
   * Asks the caller, and waits for the answer, or for what stands for it when the question expires or the run ends. In a
   * run that is to stop, a question is dropped at once: it gets an empty answer, and sequence 0. Call it only if `request.permissions.interactive` is set; see `permit` for permissions.
   */
  async ask(question: Question): Promise<Resolution> {
    if (this.signal.aborted) return { how: InputResolution.DROPPED, answer: create(InputAnswerSchema), sequence: 0n };
    this.#begin();
    return this.#live.inputs.ask(question);
  }

  /**
   * Decides about an action of the agent, as the permissions of the run say: by a rule, or by asking the caller. In a
   * run that is not interactive no caller is asked, and what no rule allows is denied. In a run that is to stop nothing
   * is allowed.
   *
   * @param question what the caller is shown beside the subject
   */
  async permit(
    subject: MessageInitShape<typeof InputSubjectSchema>,
    question: { title?: string; description?: string; editableInputJson?: string } = {},
  ): Promise<Decision> {
    if (this.signal.aborted)
      return { isAllowed: false, message: "The run is to stop.", updatedInputJson: "", isForAll: false };
    this.#begin();
    const action: InputSubject = create(InputSubjectSchema, subject);
    const { permissions } = this.request;
    const decision = decide(permissions, action, this.cwd);
    if (decision !== "ask") {
      const isAllowed = decision === "allow";
      if (!isAllowed)
        this.notice(
          Severity.WARNING,
          "permission_denied",
          `${action.toolName || "An action"} was denied by the permissions of the run.`,
        );
      return {
        isAllowed,
        message: isAllowed ? "" : "The permissions of this run do not allow it.",
        updatedInputJson: "",
        isForAll: false,
      };
    }
    const options = [
      { id: "allow", kind: InputOptionKind.ALLOW_ONCE, label: "Allow" },
      { id: "reject", kind: InputOptionKind.REJECT_ONCE, label: "Reject" },
      { id: "allow_always", kind: InputOptionKind.ALLOW_ALWAYS, label: "Allow in this run" },
    ];
    const title = question.title || `${action.toolName || "The agent"} asks for permission`;
    const { description, editableInputJson } = question;
    const { how, answer } = await this.ask({
      title,
      description,
      editableInputJson,
      kind: InputKind.PERMISSION,
      subject: action,
      options,
    });
    const [chosen = ""] = answer.optionIds;
    const isAllowed = how === InputResolution.ANSWERED && chosen.startsWith("allow");
    return {
      isAllowed,
      message: answer.message,
      updatedInputJson: answer.updatedInputJson,
      isForAll: chosen === "allow_always",
    };
  }

  /**
   * Runs a program in the run's directory, with the run's variables, and waits until it and all that it started is
   * gone. It opens the attempt, unless `start` did. Each line goes to `handle`, one after the other; without one, to
   * `log`. When the run is to stop, the program gets SIGTERM, and is killed after the grace; also when `handle` throws,
   * whose error is thrown once the program is gone.
   */
  exec(command: Command, handle: (line: Line) => void | Promise<void> = (line) => this.log(line)): Promise<Exit> {
    return execute(this.#live, this, command, handle);
  }

  /**
   * Starts a program as `exec` does, whose streams its author reads and writes: for libraries that speak with a program
   * themselves. Without a program, the run is to stop already, or it could not be started; `exit.result()` says why. If
   * the program still runs when the adapter's `run` has returned or thrown, it is stopped.
   */
  spawn(command: Command): { exit: Exit; program?: Program } {
    return start(this.#live, this, command);
  }

  /** Says that the program has reported its end: if it lives on, it is killed in a while, and no limit holds. */
  done(): void {
    for (const child of this.#live.programs.keys()) child.done();
    this.#live.clocks.areOff = true;
  }

  /** Returns a text without the secrets of the request. */
  redact(text: string): string {
    return this.#live.settings.redactor.text(text);
  }

  /** Returns a directory for this run alone, which is removed after it. */
  directory(): string {
    if (this.#live.directory === undefined) {
      let path = mkdtempSync(join(tmpdir(), "dragoman-run-"));
      if (Buffer.byteLength(path) > LONGEST_DIRECTORY) {
        rmdirSync(path);
        path = mkdtempSync("/tmp/dragoman-run-");
      }
      this.#live.directory = path;
    }
    return this.#live.directory;
  }

  /**
   * Lays the skills of the request out as files in the run's directory, for an agent with FEATURE_SKILLS that finds them
   * by itself, and returns the directory below which they are.
   *
   * @param layout where one goes, e.g. ".claude/skills/{name}"
   */
  placeSkills(layout = "{name}"): string {
    const root = join(this.directory(), "skills");
    rmSync(root, { recursive: true, force: true }); // of the attempt before
    mkdirSync(root, { mode: 0o700 });
    layOut(root, this.#live.settings.skills, layout);
    return root;
  }

  #begin(): void {
    if (this.#live.isOver || this.#live.recorder.phase === "ended")
      throw this.signal.reason ?? new Error("the run has ended");
    if (this.#live.recorder.phase === "initial") this.start();
  }

  #take(event: AgentEvent): void {
    this.#begin();
    const { clocks, recorder, stop } = this.#live;
    const now = performance.now();
    if (event.origin === EventOrigin.AGENT) {
      this.#live.heardAt = now;
      clocks.active(now);
    }
    if (event.body.case === "state" && stop.isRequested) return; // the run is being stopped, whatever the agent still tries
    clocks.observe(event, now);
    recorder.take(event);
    if (event.body.case === "toolCall") this.#live.watch(); // its limit may be shorter
  }
}
