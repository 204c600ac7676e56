/** The processes of a run: a leader, and all that it started. */
import { readdirSync, readFileSync } from "node:fs";

import { MARKER } from "./environment.js";

interface Entry {
  pid: number;
  parent: number;
  group: number;
  session: number;
}

/**
 * Finds and signals what a program has started. On Linux it is found by its parents, by its session, and by a marker
 * in its environment; elsewhere by its process group.
 */
export class Tree {
  readonly #leader: number;
  readonly #marker: Buffer;

  constructor(leader: number, marker: string) {
    this.#leader = leader;
    this.#marker = Buffer.from(`${MARKER}=${marker}`);
  }

  /** Signals all of them, and wakes what was stopped. */
  signal(signal: NodeJS.Signals): void {
    for (const pid of this.#members()) {
      send(pid, signal);
      if (signal !== "SIGKILL") send(pid, "SIGCONT");
    }
  }

  /** Signals the leader's process group. */
  signalGroup(signal: NodeJS.Signals): void {
    send(-this.#leader, signal);
    send(-this.#leader, "SIGCONT");
  }

  /** Whether a search finds nothing that is left. */
  get isGone(): boolean {
    return this.#members().length === 0;
  }

  #members(): number[] {
    const all = entries();
    if (!all) return send(-this.#leader, 0) ? [-this.#leader] : [];
    const found = new Set<number>();
    for (const { pid, group, session } of all) {
      if (pid === this.#leader || group === this.#leader || session === this.#leader || isMarked(pid, this.#marker))
        found.add(pid);
    }
    for (let before = -1; before !== found.size;) {
      before = found.size;
      for (const { pid, parent } of all) if (found.has(parent)) found.add(pid);
    }
    return [...found];
  }
}

/** Returns the live processes of the machine; undefined if this system does not show them. */
function entries(): Entry[] | undefined {
  let names: string[];
  try {
    names = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  } catch {
    return undefined; // another system
  }
  if (names.length === 0) return undefined;
  return names.flatMap((name) => {
    const stat = contentOf(`/proc/${name}/stat`)?.toString("latin1");
    if (stat === undefined) return [];
    // The program's name stands in parentheses and may hold any byte.
    const [state, parent, group, session] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return state === "Z" || state === "X"
      ? []
      : [{ pid: Number(name), parent: Number(parent), group: Number(group), session: Number(session) }];
  });
}

function isMarked(pid: number, marker: Buffer): boolean {
  const content = pid === process.pid ? undefined : contentOf(`/proc/${pid}/environ`);
  for (let at = content?.indexOf(marker) ?? -1; content && at >= 0; at = content.indexOf(marker, at + 1)) {
    const end = at + marker.length;
    if ((at === 0 || content[at - 1] === 0) && (end === content.length || content[end] === 0)) return true;
  }
  return false;
}

function contentOf(path: string): Buffer | undefined {
  try {
    return readFileSync(path);
  } catch {
    return undefined; // it is gone, or another user's
  }
}

function send(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, signal);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
