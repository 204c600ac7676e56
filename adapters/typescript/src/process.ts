import { create } from "@bufbuild/protobuf";
import { FailureKind, OutputStream, Outcome, RunPhase, ResultSchema, Severity, type Result } from "@dragoman/client/v1";
import { spawn, type ChildProcessWithoutNullStreams } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, existsSync, mkdirSync, readlinkSync, statSync } from "node:fs";
import { hostname } from "node:os";
import { join, resolve } from "node:path";
import type { Readable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";

import { MARKER, variablesOf, type Variables } from "./environment.js";
import { failureOf } from "./failure.js";
import { Lines, type Line } from "./lines.js";
import type { LiveRun } from "./live.js";
import { isSecretEntry } from "./redact/names.js";
import { MASK } from "./redact/redactor.js";
import type { Run } from "./run.js";
import { Sentinel } from "./sentinel.js";
import { directoryProblem } from "./settings.js";
import { Tree } from "./tree.js";

export type { Line } from "./lines.js";

const LINGER_MS = 1_000; // between TERM and KILL for what the program leaves behind
const KILL_BOUND_MS = 5_000; // after which a search is given up: a process that is stuck in the kernel
const LINGER_OF_DONE_MS = 5_000; // that a program may live on after it has reported its end
const PIPE_BOUND_MS = 1_000; // that pipes stay open after all known writers are gone
const POLL_MS = 10;
const SHOWN_TAIL = 400; // characters of the last output in a message

/** Returns where a process ID of this process means something; there is no namespace on systems other than Linux. */
function placeOfProcesses(): { host: string; pidNamespace?: bigint } {
  const host = hostname();
  try {
    const found = /^pid:\[(\d+)\]$/.exec(readlinkSync("/proc/self/ns/pid"));
    return found?.[1] === undefined ? { host } : { host, pidNamespace: BigInt(found[1]) };
  } catch {
    return { host };
  }
}

/** Ends the programs of this process if it is killed. */
export const sentinel = new Sentinel();

/** A program to run. */
export interface Command {
  /** A name on the run's PATH, or an absolute path. */
  path: string;
  args?: string[];
  /** Written to its standard input, which is closed after it. */
  stdin?: string;
  /** Beside the run's variables; those of the settings and of the request win. */
  env?: Variables;
}

/** How a program ended, and what is known of why. */
export class Exit {
  /** Absent if a signal ended it, or it did not run. */
  code: number | undefined;
  signal: NodeJS.Signals | undefined;
  /** The name of the error if the program could not be started, e.g. "ENOENT". */
  errno: string | undefined;
  /** Whether nothing that the program started is left. Absent if it did not run. */
  isConfirmed: boolean | undefined;
  /** Whether it was to stop before it ended. */
  wasStopped = false;
  /** The end of what it printed and was logged, redacted. */
  tail = "";
  readonly #command: string;
  readonly #cwd: string;

  constructor(command: string, cwd: string) {
    this.#command = command;
    this.#cwd = cwd;
  }

  /** Returns what a program's end means: code 0 is success. The run's own limits and cancellation come on top. */
  result(): Result {
    const common = { exitCode: this.code, signal: this.signal ?? "", treeConfirmedDead: this.isConfirmed };
    if (this.code === 0 && !this.wasStopped) return create(ResultSchema, { ...common, outcome: Outcome.SUCCEEDED });
    return create(ResultSchema, { ...common, outcome: Outcome.FAILED, failure: failureOf(...this.#failure()) });
  }

  #failure(): [kind: FailureKind, code: string, message: string] {
    if (this.errno !== undefined && directoryProblem(this.#cwd)) {
      return [
        FailureKind.WORKSPACE_FAILED,
        "cwd_absent",
        "The working directory was removed before the agent was started.",
      ];
    }
    if (this.errno === "ENOENT") {
      return [
        FailureKind.NOT_INSTALLED,
        "command_not_found",
        `${this.#command} was not found on the run's PATH: that of the request's env, ` +
          "else of the adapter. Install it there, or name its path.",
      ];
    }
    if (this.errno !== undefined) {
      return [
        FailureKind.SPAWN_FAILED,
        `spawn_${this.errno.toLowerCase()}`,
        `${this.#command} could not be started (${this.errno}).`,
      ];
    }
    const last = this.tail.trim() === "" ? "" : ` Its last output: ${this.tail.trim().slice(-SHOWN_TAIL)}`;
    if (this.signal) return [FailureKind.PROCESS_CRASHED, "signal", `The agent was ended by ${this.signal}.${last}`];
    return [FailureKind.PROCESS_CRASHED, "exit_code", `The agent exited with code ${this.code}.${last}`];
  }
}

/** A program that runs, with all that it starts. */
export class Child {
  readonly #process: ChildProcessWithoutNullStreams;
  readonly #tree: Tree;
  #timer: NodeJS.Timeout | undefined;
  #isKilled = false;

  constructor(child: ChildProcessWithoutNullStreams, pid: number, marker: string) {
    this.#process = child;
    this.#tree = new Tree(pid, marker);
  }

  get hasEnded(): boolean {
    return this.#process.exitCode !== null || this.#process.signalCode !== null;
  }

  /** Asks the program to end, and kills it after so many milliseconds. */
  stop(graceMs: number): void {
    if (graceMs > 0 && !this.#timer) this.#tree.signalGroup("SIGTERM");
    this.#killIn(graceMs);
  }

  /** Kills the program in a while, as it has reported its end. */
  done(): void {
    if (!this.#timer) this.#killIn(LINGER_OF_DONE_MS);
  }

  #killIn(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#kill(), Math.max(ms, 0));
  }

  #kill(): void {
    this.#isKilled = true;
    this.#tree.signal("SIGKILL");
    if (!this.hasEnded) this.#timer = setTimeout(() => this.#kill(), POLL_MS); // what forks may have been missed
  }

  /** Ends what the program has left behind: by TERM, then by KILL. Returns whether nothing is left. */
  async endRest(): Promise<boolean> {
    clearTimeout(this.#timer);
    const began = performance.now() - (this.#isKilled ? LINGER_MS : 0);
    for (let signal: NodeJS.Signals = "SIGTERM"; !this.#tree.isGone; await delay(POLL_MS)) {
      const passed = performance.now() - began;
      if (passed > LINGER_MS + KILL_BOUND_MS) return false;
      if (passed >= LINGER_MS) signal = "SIGKILL";
      if (signal === "SIGKILL" || passed < POLL_MS) this.#tree.signal(signal);
    }
    return true;
  }
}

/** A program that was started for a run; its author reads and writes its streams. */
export interface Program {
  process: ChildProcessWithoutNullStreams;
  /** Resolves when the program and all that it started is gone. */
  ended: Promise<Exit>;
}

/** Starts a program for a run. Without a process, the exit says why. */
export function start(live: LiveRun, run: Run, command: Command): { exit: Exit; program?: Program; child?: Child } {
  const { recorder, clocks, stop } = live;
  const args = command.args ?? [];
  const cwd = live.settings.cwd || run.directory();
  const exit = new Exit(command.path, cwd);
  const temporary = join(run.directory(), "tmp");
  mkdirSync(temporary, { recursive: true, mode: 0o700 });
  const { trace } = live.span;
  const sources = { own: process.env, command: command.env ?? {}, config: live.settings.env, temporary, trace };
  const env = variablesOf(live.request, sources);
  if (recorder.phase === "initial") {
    const argv = withoutPrompt([command.path, ...args], run.prompt);
    run.start({ command: command.path, argv, env: shownVariables(live, env) });
  }
  exit.wasStopped = stop.isRequested;
  if (exit.wasStopped) return { exit };
  const child = spawn(command.path, args, { cwd, env: { ...env, [MARKER]: live.marker }, detached: true });
  const exited = once(child, "exit").catch(() => {});
  child.on("error", (error: NodeJS.ErrnoException) => {
    exit.errno = error.code ?? "EIO";
  });
  child.stdin.on("error", () => {}); // a program need not read it
  const { pid } = child;
  if (pid === undefined) {
    exit.errno = errnoOf(command.path, cwd, env["PATH"]);
    return { exit };
  }
  sentinel.add(pid, live.marker);
  const running = new Child(child, pid, live.marker);
  clocks.start(performance.now());
  recorder.state({ phase: RunPhase.RUNNING, pid: BigInt(pid), processGroupId: BigInt(pid), ...placeOfProcesses() });
  live.watch();
  stop.onDeadline((deadline) => {
    if (live.programs.has(running)) running.stop(deadline - performance.now());
  });
  const ended = exited.then(async () => {
    clocks.areOff = live.programs.size === 1; // it was the last one
    exit.wasStopped = stop.isRequested;
    exit.code = child.exitCode ?? undefined;
    exit.signal = child.signalCode ?? undefined;
    exit.isConfirmed = await running.endRest();
    sentinel.remove(pid, live.marker);
    live.programs.delete(running);
    live.isConfirmed = (live.isConfirmed ?? true) && exit.isConfirmed;
    return exit;
  });
  ended.catch(() => {}); // an author need not await it
  live.programs.set(running, ended);
  return { exit, program: { process: child, ended }, child: running };
}

/** Runs a program for a run, and waits until it and all that it started is gone. */
export async function execute(
  live: LiveRun,
  run: Run,
  command: Command,
  handle: (line: Line) => void | Promise<void>,
): Promise<Exit> {
  const { exit, program, child } = start(live, run, command);
  if (!program) {
    await delay(0); // what exactly went wrong comes as an event
    return exit;
  }
  const { stdin, stdout, stderr } = program.process;
  live.recorder.isPiped = true;
  stdin.end(command.stdin ?? "");
  const output = new Output(live, exit, handle);
  const reading = Promise.all([output.read(stdout, OutputStream.STDOUT), output.read(stderr, OutputStream.STDERR)]);
  reading.catch(() => {
    // `handle` threw. Its error is reported when the program has ended: that must not take until it does so by itself.
    live.clocks.areOff = true;
    child?.stop(live.settings.graceMs);
    stdout.destroy();
    stderr.destroy();
  });
  await program.ended;
  // What the program wrote is read to its end, unless a process outside holds a pipe open.
  await output.drained(reading, [stdout, stderr]);
  return exit;
}

/** Returns why a program could not be started. Node.js says it with the next event, which replaces this. */
function errnoOf(path: string, cwd: string, search = "/usr/bin:/bin"): string {
  const found = placesOf(path, cwd, search);
  if (found.length === 0) return "ENOENT";
  return found.some(isExecutable) ? "EIO" : "EACCES";
}

/** Returns where a program is: at its path, or in the directories of a PATH. */
export function placesOf(program: string, cwd: string, search: string): string[] {
  const directories = program.includes("/") ? [""] : search.split(":");
  return directories.map((directory) => resolve(cwd, directory, program)).filter((place) => existsSync(place));
}

/** Returns whether a path is that of a file that may be executed. */
export function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

function shownVariables(live: LiveRun, env: Variables): Variables {
  const changed = Object.entries(env).filter(
    ([name, value]) => name in live.request.env || process.env[name] !== value,
  );
  return Object.fromEntries(
    changed.map(([name, value]) => {
      const isHidden = name in live.request.env || isSecretEntry(name, value);
      return [name, isHidden ? MASK : value]; // events show the names of such variables, never their values
    }),
  );
}

/** Returns arguments with the prompt replaced by its length. */
function withoutPrompt(argv: string[], prompt: string): string[] {
  if (prompt === "") return argv;
  const mask = `[prompt: ${Buffer.byteLength(prompt)} bytes]`;
  // A short one may be in other arguments by chance.
  return argv.map((argument) =>
    argument === prompt ? mask : prompt.length > 8 ? argument.replaceAll(prompt, mask) : argument,
  );
}

/** What a program prints. */
class Output {
  readonly #live: LiveRun;
  readonly #exit: Exit;
  readonly #handle: (line: Line) => void | Promise<void>;
  #turn: Promise<void> = Promise.resolve(); // lines of both streams are handled one after the other
  #readAt = performance.now();

  constructor(live: LiveRun, exit: Exit, handle: (line: Line) => void | Promise<void>) {
    this.#live = live;
    this.#exit = exit;
    this.#handle = handle;
  }

  async read(pipe: Readable, stream: OutputStream): Promise<void> {
    const lines = new Lines(stream);
    try {
      for await (const chunk of pipe) {
        await this.#lines(lines.feed(this.#counted(stream, chunk as Buffer)));
        await this.#live.pace();
        this.#readAt = performance.now();
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ERR_STREAM_PREMATURE_CLOSE") throw error; // it was closed by `drained`
    }
    // The limit of output may have cut a secret in two.
    const { recorder } = this.#live;
    await this.#lines(lines.end((text) => (recorder.isCut ? recorder.withoutHalf(text) : text)));
  }

  /** Waits until all is read; once nothing has come for a while, the pipes are closed. */
  async drained(reading: Promise<unknown>, pipes: Readable[]): Promise<void> {
    this.#readAt = performance.now();
    const timer = setInterval(() => {
      if (performance.now() - this.#readAt > PIPE_BOUND_MS && !this.#live.log.isBehind)
        pipes.forEach((pipe) => pipe.destroy());
    }, POLL_MS);
    await reading.finally(() => clearInterval(timer));
  }

  /** Counts output, which is a sign of life, and returns what the limit leaves of it. */
  #counted(stream: OutputStream, data: Buffer): Buffer {
    const { recorder, clocks } = this.#live;
    clocks.active(performance.now());
    if (stream === OutputStream.STDERR) recorder.counters.stderrBytes += BigInt(data.length);
    else recorder.counters.stdoutBytes += BigInt(data.length);
    return recorder.within(data);
  }

  #lines(lines: Line[]): Promise<void> {
    this.#turn = this.#turn.then(async () => {
      for (const line of lines) await this.#one(line);
    });
    return this.#turn;
  }

  async #one(line: Line): Promise<void> {
    const { recorder, settings } = this.#live;
    if (line.cutBytes > 0) {
      recorder.counters.droppedBytes += BigInt(line.cutBytes);
      recorder.notice(Severity.WARNING, "line_too_long", `A line was too long; ${line.cutBytes} bytes were cut.`);
    }
    this.#exit.tail = `${this.#exit.tail}\n${settings.redactor.text(line.text.slice(-SHOWN_TAIL * 4))}`.slice(
      -SHOWN_TAIL * 4,
    );
    await this.#handle(line);
  }
}
