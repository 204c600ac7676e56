import { create } from "@bufbuild/protobuf";
import { FailureKind, FailureSchema, type Failure as FailureMessage } from "@dragoman/client/v1";

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

/** Returns a failure as it stands in a result. */
export function failureOf(kind: FailureKind, code: string, message: string): FailureMessage {
  return create(FailureSchema, { kind, code, message, retryable: RETRYABLE.has(kind) });
}
