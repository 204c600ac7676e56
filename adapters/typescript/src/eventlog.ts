/**
 * The events of one run in memory: one writer, many readers.
 *
 * A reader is a position, so it costs nothing while it keeps up and cannot make others wait. If it falls too far
 * behind it is dropped, and may attach again; events that are no longer kept become a gap. A reader may hold the run:
 * the writer waits while even the foremost of these is far behind.
 */
import { create, toBinary } from "@bufbuild/protobuf";
import { AgentEventSchema, GapReason, type AgentEvent, type MessageInitShape } from "@dragoman/client/v1";

const MIB = 1 << 20;
const CAPACITY = 16 * MIB; // of what is kept for readers that come later
const READER_LAG = 8 * MIB; // how far one reader may fall behind
const BACKLOG = 4 * MIB; // how much waits for the readers that hold the run, before the writer waits
const CHUNK_EVENTS = 256;
const CHUNK_BYTES = 256 << 10;
const EPHEMERALS = 64; // that wait for one reader

/** An event as it is sent. */
export interface Entry {
  /** 0: it is ephemeral. */
  sequence: bigint;
  kind: AgentEvent["body"]["case"];
  bytes: Uint8Array;
}

interface Kept extends Entry {
  /** Bytes ever appended, with this event. */
  end: number;
}

/** The reader fell too far behind. */
export class SlowReader extends Error {}

/** Wakes those that wait for a change. */
class Changes {
  #waiting: (() => void)[] = [];

  wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resume of waiting) resume();
  }

  /** Waits for the next change, or for the end of a signal. */
  wait(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const resume = () => {
        signal?.removeEventListener("abort", resume);
        resolve();
      };
      this.#waiting.push(resume);
      signal?.addEventListener("abort", resume, { once: true });
      if (signal?.aborted) resume();
    });
  }
}

/** The events of one run. */
export class EventLog {
  readonly runId: string;
  readonly changes = new Changes();
  readonly readers = new Set<Reader>();
  entries: Kept[] = [];
  /** The last sequence. */
  last: bigint;
  /** Bytes ever appended. */
  end = 0;
  /** Bytes in memory. */
  kept = 0;
  isClosed = false;
  #taken = 0; // by the foremost reader that holds the run, or by the last one while there is none
  #isUnpaused = false;

  constructor(runId: string, firstSequence: bigint) {
    this.runId = runId;
    this.last = firstSequence - 1n;
  }

  /** Appends a durable event, whose sequence is the next one. */
  append(event: AgentEvent, bytes: Uint8Array): void {
    this.last = event.sequence;
    this.end += bytes.length;
    this.kept += bytes.length;
    this.entries.push({ sequence: event.sequence, kind: event.body.case, bytes, end: this.end });
    let dropped = 0;
    while (this.kept > CAPACITY && dropped < this.entries.length - 1)
      this.kept -= (this.entries[dropped++] as Kept).bytes.length;
    if (dropped > 0) this.entries.splice(0, dropped);
    for (const reader of this.readers) reader.checkLag();
    this.changes.wake();
  }

  /** Hands an event without a sequence to all present readers. */
  send(event: AgentEvent): void {
    if (this.isClosed) return;
    const entry = entryOf(event);
    for (const reader of this.readers) reader.push(this.last, entry);
    this.changes.wake();
  }

  /** Says that nothing follows. */
  close(): void {
    this.isClosed = true;
    this.changes.wake();
  }

  /** Makes the writer wait no more: the agent is to stop, and must not wait in a write. */
  unpause(): void {
    this.#isUnpaused = true;
    this.changes.wake();
  }

  /** Whether the readers that hold the run are far behind, as they are while there is none. */
  get isBehind(): boolean {
    return !this.#isUnpaused && !this.isClosed && this.end - this.#taken > BACKLOG;
  }

  /** Waits while the readers that hold the run are far behind. */
  async taken(): Promise<void> {
    while (!this.#isUnpaused && !this.isClosed && this.end - this.#taken > BACKLOG / 2) await this.changes.wait();
  }

  /** Takes note of how far the foremost reader is that holds the run. */
  noteTaken(): void {
    const holding = [...this.readers].filter((reader) => reader.holds).map((reader) => reader.taken);
    if (holding.length === 0) return;
    const foremost = Math.max(...holding);
    if (foremost === this.#taken) return;
    this.#taken = foremost;
    this.changes.wake();
  }

  /** Returns the index of the first event that is kept after a sequence. */
  seek(after: bigint): number {
    const first = this.entries[0]?.sequence;
    return first === undefined || after < first ? 0 : Number(after - first) + 1; // sequences have no holes
  }
}

/** Options of a reader. */
export interface ReaderOptions {
  /** The last sequence that the reader has. */
  after: bigint;
  /** Whether it holds the run. */
  holds: boolean;
  /** Whether to mark where the replay ends. */
  replayDone: boolean;
}

/** A position in a log. Close it when done. */
export class Reader {
  readonly holds: boolean;
  /** The last sequence that was handed out. */
  cursor: bigint;
  /** Bytes of the log up to its position. */
  taken: number;
  readonly #log: EventLog;
  readonly #replayTo: bigint;
  #read: number;
  #isSlow = false;
  #wantsMark: boolean;
  #ephemeral: { after: bigint; entry: Entry }[] = [];

  /**
   * @param pending what is open, for a reader that asks where the replay ends
   * @throws RangeError if there is no such sequence yet
   */
  constructor(log: EventLog, options: ReaderOptions, pending: AgentEvent[] = []) {
    if (options.after > log.last) throw new RangeError("there is no such sequence yet");
    this.#log = log;
    this.holds = options.holds;
    this.cursor = options.after;
    this.#replayTo = log.last;
    this.#read = log.end;
    this.#wantsMark = options.replayDone && !log.isClosed;
    if (this.#wantsMark) this.#ephemeral = pending.map((event) => ({ after: log.last, entry: entryOf(event) }));
    if (log.isClosed && options.after === log.last && log.entries.length > 0) this.cursor -= 1n; // the result comes again
    const next = log.entries[log.seek(this.cursor)];
    this.taken = next ? next.end - next.bytes.length : log.end;
    log.readers.add(this);
    log.noteTaken();
  }

  close(): void {
    this.#log.readers.delete(this);
    this.#log.noteTaken();
  }

  checkLag(): void {
    if (this.#log.end - this.#read <= READER_LAG) return;
    this.#isSlow = true;
    this.#log.readers.delete(this);
  }

  push(after: bigint, entry: Entry): void {
    if (this.#ephemeral.length === EPHEMERALS) this.#ephemeral.shift();
    this.#ephemeral.push({ after, entry });
  }

  /**
   * Returns the next events, waiting for at least one; none at the end of the run, or of the signal.
   *
   * @throws SlowReader
   */
  async next(signal: AbortSignal): Promise<Entry[]> {
    for (;;) {
      if (this.#isSlow) throw new SlowReader();
      const events = signal.aborted ? [] : this.#take();
      if (events.length > 0 || this.#log.isClosed || signal.aborted) return events;
      await this.#log.changes.wait(signal);
    }
  }

  #take(): Entry[] {
    const log = this.#log;
    const events: Entry[] = [];
    let bytes = 0;
    for (
      let index = log.seek(this.cursor);
      index < log.entries.length && events.length < CHUNK_EVENTS && bytes < CHUNK_BYTES;
      index++
    ) {
      const next = log.entries[index] as Kept;
      this.#between(events);
      if (next.sequence !== this.cursor + 1n) {
        events.push(this.#gap(next.sequence - 1n));
        this.#between(events);
      }
      events.push(next);
      bytes += next.bytes.length;
      this.cursor = next.sequence;
      this.taken = next.end;
      this.#read = Math.max(this.#read, next.end);
    }
    this.#between(events);
    if (this.holds) log.noteTaken();
    return events;
  }

  /** Takes what belongs between the last sequence and the next. */
  #between(events: Entry[]): void {
    const isReplayed = this.#wantsMark && this.cursor >= this.#replayTo;
    while (this.#ephemeral[0] && this.#ephemeral[0].after <= this.cursor)
      events.push((this.#ephemeral.shift() as { entry: Entry }).entry);
    if (isReplayed) {
      this.#wantsMark = false;
      events.push(ephemeral(this.#log.runId, { case: "replayDone", value: { lastSequence: this.#log.last } }));
    }
  }

  #gap(toSequence: bigint): Entry {
    const gap = { fromSequence: this.cursor + 1n, toSequence, reason: GapReason.EVICTED };
    this.cursor = toSequence;
    return ephemeral(this.#log.runId, { case: "gap", value: gap });
  }
}

function ephemeral(runId: string, body: NonNullable<MessageInitShape<typeof AgentEventSchema>["body"]>): Entry {
  return entryOf(create(AgentEventSchema, { runId, body }));
}

function entryOf(event: AgentEvent): Entry {
  return { sequence: event.sequence, kind: event.body.case, bytes: toBinary(AgentEventSchema, event) };
}
