import type { Expiry } from "./clocks.js";

/** Why a run is to stop; the reason of its signal. */
export class RunStopped extends Error {
  override readonly name = "RunStopped";
  override readonly cause: "cancelled" | "limit" | "ended";

  constructor(cause: "cancelled" | "limit" | "ended") {
    super({ cancelled: "the run was cancelled", limit: "the run exceeded a limit", ended: "the run has ended" }[cause]);
    this.cause = cause;
  }
}

/** The request to end a run. Times are those of `performance.now()`, in milliseconds. */
export class Stop {
  readonly #controller = new AbortController();
  readonly #listeners: (() => void)[] = [];
  /** By when the run is to end; undefined: it is not to. */
  deadline: number | undefined;
  isCancelled = false;
  /** The limit that was exceeded. */
  expiry: Expiry | undefined;

  /** Ends when the run is to stop. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get isRequested(): boolean {
    return this.deadline !== undefined;
  }

  /** Requests the end; a later request can only shorten the deadline. */
  by(deadline: number, reason: RunStopped): void {
    if (this.deadline !== undefined && deadline >= this.deadline) return;
    this.deadline = deadline;
    this.#controller.abort(reason);
    for (const listener of this.#listeners) listener();
  }

  /** Says that the run has ended. */
  end(): void {
    this.#controller.abort(new RunStopped("ended"));
  }

  /** Calls a function with each deadline, also with one that was set before. */
  onDeadline(listener: (deadline: number) => void): void {
    const call = () => listener(this.deadline as number);
    this.#listeners.push(call);
    if (this.isRequested) call();
  }
}
