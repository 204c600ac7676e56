const LONGEST_ORPHAN_MS = 24 * 3600 * 1000;
const SERVER_ENDED_GRACE_MS = 30_000; // that a stream that the server ended still counts as open

/** Counts the streams that hold a run, and ends the run when none has for a while. Losing a stream is not intent. */
export class Holders {
  readonly #afterMs: number;
  readonly #onOrphan: () => void;
  #count = 0;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(afterMs: number, onOrphan: () => void) {
    this.#afterMs = Math.min(Math.max(afterMs, 0), LONGEST_ORPHAN_MS);
    this.#onOrphan = onOrphan;
  }

  acquire(): void {
    this.#count += 1;
    clearTimeout(this.#timer);
  }

  /** Takes note of the end of a stream. One that the server ended counts for a while: its reader did nothing wrong. */
  release(isByServer: boolean): void {
    if (this.#isClosed) return;
    if (isByServer) {
      setTimeout(() => this.release(false), SERVER_ENDED_GRACE_MS).unref();
      return;
    }
    this.#count -= 1;
    if (this.#count > 0) return;
    this.#timer = setTimeout(() => {
      if (this.#count === 0 && !this.#isClosed) this.#onOrphan();
    }, this.#afterMs);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }
}
