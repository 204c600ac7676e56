import { create } from "@bufbuild/protobuf";
import { FailureKind, FailureSchema, type Failure as FailureMessage } from "@dragoman/client/v1";

const SDK = new URL(".", import.meta.url).href; // the folder of this file, as stack traces have it
const RETRYABLE = new Set([
  FailureKind.QUOTA_EXCEEDED,
  FailureKind.RATE_LIMITED,
  FailureKind.UPSTREAM_UNAVAILABLE,
  FailureKind.NETWORK,
  FailureKind.SESSION_LOST,
  FailureKind.PROCESS_CRASHED,
  FailureKind.NO_RESULT,
  FailureKind.START_TIMEOUT,
  FailureKind.IDLE_TIMEOUT,
  FailureKind.TOOL_TIMEOUT,
  FailureKind.ADAPTER_LOST,
]);

/** Why an agent failed; `run` of an adapter throws it. Any other error is a fault of the adapter. */
export class Failure extends Error {
  override readonly name = "Failure";
  readonly kind: FailureKind;
  /** Stable and more specific than the kind; may be empty. */
  readonly code: string;

  /** @param message for people: what went wrong, and what to do */
  constructor(kind: FailureKind, code: string, message: string) {
    super(message);
    this.kind = kind;
    this.code = code;
  }
}

/** Returns what a log says of an error. */
export function textOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

/**
 * Returns the name of an error and where the adapter's own code raised it, e.g. `TypeError at adapter.js:58`. Its text
 * is left out: it may quote what it was given, such as a prompt or a line of the agent.
 */
export function placeOf(error: unknown): string {
  if (!(error instanceof Error)) return typeof error;
  const frames = (error.stack ?? "").split("\n").filter((line) => /^\s+at /.test(line));
  const own = frames.find((line) => !line.includes(SDK) && !/node_modules|node:/.test(line));
  const place = /([^/\\()\s]+:\d+):\d+\)?$/.exec(own ?? "")?.[1];
  return place ? `${error.name} at ${place}` : error.name;
}

/** Returns a failure as it stands in a result. */
export function failureOf(kind: FailureKind, code: string, message: string): FailureMessage {
  return create(FailureSchema, { kind, code, message, retryable: RETRYABLE.has(kind) });
}
