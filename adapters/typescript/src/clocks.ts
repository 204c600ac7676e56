import { FailureKind, ToolKind, ToolStatus, type AgentEvent } from "@dragoman/client/v1";

/** The limit that is exceeded next. */
export interface Expiry {
  /** Milliseconds, of the clock of `performance.now()`. */
  at: number;
  kind: FailureKind;
  code: string;
  message: string;
}

/** Limits in milliseconds; 0: none. */
export interface TimeLimits {
  startUp: number;
  idle: number;
  wall: number;
  toolCall: number;
}

/**
 * Says when a run has exceeded one of its limits. Silence is not the agent's while a tool call is open, which has a
 * limit of its own, nor while it waits for readers of its events or for an answer. Times are in milliseconds.
 */
export class Clocks {
  readonly #limits: TimeLimits;
  readonly #acceptedAt: number;
  readonly #calls = new Map<string, number>(); // open ones, and since when
  #startedAt: number | undefined;
  #activeAt: number | undefined;
  #waits = 0; // for how many reasons the agent waits
  #waitsSince = 0;
  /** Whether the agent has ended. */
  areOff = false;

  constructor(limits: TimeLimits, acceptedAt: number) {
    this.#limits = limits;
    this.#acceptedAt = acceptedAt;
  }

  /** The agent starts, perhaps once more. */
  start(now: number): void {
    this.areOff = false;
    this.#startedAt = now;
    this.#activeAt = undefined;
    this.#calls.clear();
  }

  /** The agent gave a sign of life. */
  active(now: number): void {
    this.#activeAt = now;
  }

  /** The agent waits for us. */
  wait(now: number): void {
    if (this.#waits++ === 0) this.#waitsSince = now;
  }

  /** The agent waits for us no more. */
  resume(now: number): void {
    if (--this.#waits > 0) return;
    for (const [id, since] of this.#calls) {
      // their time stood still
      this.#calls.set(id, since < this.#waitsSince ? since + now - this.#waitsSince : now);
    }
    this.#activeAt = now;
  }

  /** Takes note of the beginning and the end of tool calls. */
  observe({ body }: AgentEvent, now: number): void {
    if (body.case === "toolResult") this.#endCall(body.value.toolCallId, now);
    if (body.case !== "toolCall") return;
    const { id, status, kind } = body.value;
    if (status > ToolStatus.RUNNING) this.#endCall(id, now);
    else if (status === ToolStatus.RUNNING && kind !== ToolKind.SUBAGENT && !this.#calls.has(id))
      this.#calls.set(id, now);
  }

  #endCall(id: string, now: number): void {
    if (this.#calls.delete(id)) this.#activeAt = now;
  }

  /** Returns the limit that is exceeded next; undefined if none will be by itself. */
  next(): Expiry | undefined {
    if (this.areOff) return undefined;
    const found = [
      expiry(
        this.#limits.wall,
        this.#acceptedAt,
        FailureKind.WALL_TIMEOUT,
        "wall_timeout",
        "The run took longer than its wall limit. Raise limits.wall if the task needs it.",
      ),
    ];
    if (this.#startedAt !== undefined && this.#waits === 0) {
      if (this.#activeAt === undefined) {
        found.push(
          expiry(
            this.#limits.startUp,
            this.#startedAt,
            FailureKind.START_TIMEOUT,
            "start_up_timeout",
            "The agent gave no sign within its start-up limit. Raise limits.start_up, or see why it hangs.",
          ),
        );
      }
      const [oldest] = this.#calls.values();
      found.push(
        oldest === undefined
          ? expiry(
              this.#limits.idle,
              this.#activeAt ?? this.#startedAt,
              FailureKind.IDLE_TIMEOUT,
              "idle_timeout",
              "The agent was silent for longer than its idle limit. Raise limits.idle if the task needs it.",
            )
          : expiry(
              this.#limits.toolCall,
              oldest,
              FailureKind.TOOL_TIMEOUT,
              "tool_call_timeout",
              "A tool call took longer than its limit. Raise limits.tool_call if the task needs it.",
            ),
      );
    }
    return found.filter((one) => one !== undefined).sort((a, b) => a.at - b.at)[0];
  }
}

function expiry(limit: number, since: number, kind: FailureKind, code: string, message: string): Expiry | undefined {
  return limit > 0 ? { at: since + limit, kind, code, message } : undefined;
}
