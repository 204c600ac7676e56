import { clone, toBinary } from "@bufbuild/protobuf";
import { DragomanError } from "@dragoman/client";
import { ExecuteRequestSchema, type ExecuteRequest } from "@dragoman/client/v1";
import { createHmac, randomBytes } from "node:crypto";

import type { LiveRun } from "./live.js";

const RETENTION_MS = 600_000;
const MOST_RETAINED = 256;
const RETAINED_BYTES = 256 << 20; // of the events of all finished runs

interface Stored {
  run: LiveRun;
  digest: string;
  forget?: NodeJS.Timeout;
}

/** The runs by their IDs: live ones, and finished ones for a while. */
export class Store {
  readonly #key = randomBytes(32); // of the digests, so that memory does not allow guessing secrets
  readonly #runs = new Map<string, Stored>();
  #finished: Stored[] = []; // in the order of their ends

  /** @throws DragomanError RUN_NOT_FOUND */
  find(id: string): LiveRun {
    const known = this.#runs.get(id);
    if (known) return known.run;
    throw new DragomanError(
      "RUN_NOT_FOUND",
      `run ${JSON.stringify(id)} not found; it may have expired, or another adapter has it`,
    );
  }

  /**
   * Returns the run that a request would start again, or adds the one that `begin` makes.
   *
   * @throws DragomanError RUN_ID_REUSED
   */
  join(request: ExecuteRequest, begin: () => LiveRun): LiveRun {
    const digest = this.#digest(request);
    const known = this.#runs.get(request.runId);
    if (known) {
      // A router that begins the next attempt holds what came before.
      const isNext = known.run.isOver && (request.relay?.firstSequence ?? 0n) > known.run.resultAt;
      if (!isNext) {
        if (known.digest === digest) return known.run;
        throw new DragomanError(
          "RUN_ID_REUSED",
          `run ${JSON.stringify(request.runId)} exists with another request; choose another ID`,
          { metadata: { run_id: request.runId } },
        );
      }
    }
    const run = begin();
    if (known) this.#remove(known);
    this.#runs.set(request.runId, { run, digest });
    return run;
  }

  /** The runs that have not ended. */
  get live(): LiveRun[] {
    return [...this.#runs.values()].map(({ run }) => run).filter((run) => !run.isOver);
  }

  /** Keeps a finished run for its time, and no more of them than there is room for. */
  retire(run: LiveRun): void {
    const known = this.#runs.get(run.request.runId);
    if (known?.run !== run) return; // the next attempt has begun
    known.forget = setTimeout(() => this.#remove(known), RETENTION_MS).unref();
    this.#finished.push(known);
    let kept = this.#finished.reduce((sum, other) => sum + other.run.log.kept, 0);
    while (this.#finished.length > 1 && (this.#finished.length > MOST_RETAINED || kept > RETAINED_BYTES)) {
      const oldest = this.#finished[0] as Stored;
      kept -= oldest.run.log.kept;
      this.#remove(oldest);
    }
  }

  #remove(known: Stored): void {
    clearTimeout(known.forget);
    this.#runs.delete(known.run.request.runId);
    this.#finished = this.#finished.filter((other) => other !== known);
  }

  /** Returns a digest of a request that is equal for requests of one run. */
  #digest(request: ExecuteRequest): string {
    const compared = clone(ExecuteRequestSchema, request);
    Object.assign(compared, {
      relay: undefined,
      authToken: "",
      batching: undefined,
      orphanAfter: undefined,
      admission: undefined,
      labels: {},
      env: sorted(request.env),
      config: request.config && sorted(request.config),
    });
    return createHmac("sha256", this.#key).update(toBinary(ExecuteRequestSchema, compared)).digest("hex");
  }
}

/** Returns the same with its keys in order, at every level: a map has none of its own. */
function sorted<T>(value: T): T {
  if (Array.isArray(value)) return value.map(sorted) as T;
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, item]) => [key, sorted(item)]),
  ) as T;
}
