import type { Adapter, Log } from "./adapter.js";
import { textOf } from "./failure.js";
import { current } from "./live.js";
import { Server } from "./server.js";
import { flushSpans } from "./spans.js";

const GRACE_MS = 15_000;
const LONGEST_MS = 2 ** 31 - 1; // of a timer

/**
 * Serves an adapter where the variable DRAGOMAN_LISTEN says, and ends the process on SIGTERM or SIGINT, once its runs
 * have ended; a second signal ends these at once. They may continue for the seconds in DRAGOMAN_DRAIN_GRACE before they
 * are cancelled. DRAGOMAN_HEALTH is the address of a port in the clear that serves health alone, for probes. Spans that
 * the registered provider has not exported yet are exported before the end, if that takes at most five seconds.
 */
export async function serve(adapter: Adapter, log: Log = toStandardError): Promise<void> {
  const address = process.env["DRAGOMAN_LISTEN"];
  try {
    if (!address) throw new Error("nowhere to listen: set DRAGOMAN_LISTEN, e.g. to unix:$HOME/agent.sock");
    const allowedMs = drainGraceMs(process.env["DRAGOMAN_DRAIN_GRACE"]);
    const server = new Server(adapter, log);
    if (process.env["DRAGOMAN_HEALTH"]) await server.serveHealth(process.env["DRAGOMAN_HEALTH"]);
    await server.listen(address);
    // A promise that an author forgot to await ends its own run, and not those of all others.
    process.on("unhandledRejection", (reason) => {
      const run = current.getStore();
      if (run && !run.isOver) run.fail(reason);
      else log("error", "a promise was rejected that nothing awaits", { error: server.redact(textOf(reason)) });
    });
    let signals = 0;
    const onSignal = () => {
      signals += 1;
      if (signals > 1) server.hurry();
      else
        drain(server, allowedMs, log).catch((error: unknown) => {
          log("error", "adapter failed", { error: textOf(error) });
          process.exit(1);
        });
    };
    process.on("SIGTERM", onSignal);
    process.on("SIGINT", onSignal);
    log("info", "adapter ready", { adapter: server.described.adapter, listen: address });
  } catch (error) {
    log("error", "adapter failed", { error: error instanceof Error ? error.message : String(error) });
    process.exit(1);
  }
}

async function drain(server: Server, allowedMs: number, log: Log): Promise<void> {
  log("info", "adapter draining");
  await server.drain(allowedMs);
  await server.stop(GRACE_MS);
  await flushSpans(log);
  log("info", "adapter stopped");
  process.exit(0);
}

/**
 * Returns how long live runs may continue once the adapter is to end.
 *
 * @throws Error it is no number of seconds
 */
export function drainGraceMs(text = ""): number {
  const seconds = /^\s*(\d+(\.\d*)?)?\s*$/.test(text) ? Number(text) : Number.NaN;
  if (!Number.isFinite(seconds)) throw new Error(`DRAGOMAN_DRAIN_GRACE="${text}" is no number of seconds; e.g. 300`);
  return Math.min(seconds * 1000, LONGEST_MS);
}

/** Writes log lines to standard error, as JSON. */
export const toStandardError: Log = (level, message, fields = {}) => {
  process.stderr.write(`${JSON.stringify({ time: new Date().toISOString(), level, message, ...fields })}\n`);
};
