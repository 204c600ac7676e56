import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { anyPack, anyUnpack, durationFromMs, durationMs, type Any } from "@bufbuild/protobuf/wkt";
import { Metadata, status, type ServiceError, type StatusObject } from "@grpc/grpc-js";

import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "./gen/google/rpc/status_pb.js";

/** `ErrorInfo.domain` of every status of the contract. */
export const DOMAIN = "dragoman";

const DETAILS = "grpc-status-details-bin";
const NO_SERVER = /connect (?:ENOENT|ECONNREFUSED) (.+?)\.?(?: Resolution note|$)/;

const CODES = {
  INVALID_REQUEST: status.INVALID_ARGUMENT,
  NOT_SUPPORTED: status.INVALID_ARGUMENT,
  ADAPTER_REQUIRED: status.INVALID_ARGUMENT,
  INVALID_ANSWER: status.INVALID_ARGUMENT,
  INVALID_PAGE_TOKEN: status.INVALID_ARGUMENT,
  ADAPTER_NOT_FOUND: status.NOT_FOUND,
  RUN_NOT_FOUND: status.NOT_FOUND,
  REQUEST_NOT_FOUND: status.NOT_FOUND,
  SESSION_NOT_FOUND: status.NOT_FOUND,
  AGENT_NOT_FOUND: status.NOT_FOUND,
  ARTIFACT_NOT_FOUND: status.NOT_FOUND,
  SERVICE_UNKNOWN: status.NOT_FOUND,
  RUN_ID_REUSED: status.ALREADY_EXISTS,
  INPUT_ID_REUSED: status.ALREADY_EXISTS,
  ADAPTER_TAKEN: status.ALREADY_EXISTS,
  AGENT_EXISTS: status.ALREADY_EXISTS,
  VERSION_MISMATCH: status.ABORTED,
  CAPABILITY_MISSING: status.FAILED_PRECONDITION,
  SESSION_BUSY: status.FAILED_PRECONDITION,
  ALREADY_RESOLVED: status.FAILED_PRECONDITION,
  REQUEST_EXPIRED: status.FAILED_PRECONDITION,
  RUN_FINISHED: status.FAILED_PRECONDITION,
  UPDATE_REFUSED: status.FAILED_PRECONDITION,
  CHANGES_UNKNOWN: status.FAILED_PRECONDITION,
  ARTIFACTS_GONE: status.FAILED_PRECONDITION,
  REVISION_TOO_OLD: status.FAILED_PRECONDITION,
  ADAPTER_UNREACHABLE: status.FAILED_PRECONDITION,
  ADAPTER_REFUSED: status.FAILED_PRECONDITION,
  ADAPTER_NOT_LAUNCHED: status.FAILED_PRECONDITION,
  ADDRESS_UNTRUSTED: status.FAILED_PRECONDITION,
  AGENT_INCOMPLETE: status.FAILED_PRECONDITION,
  TOKEN_REQUIRED: status.UNAUTHENTICATED,
  CALLER_REFUSED: status.PERMISSION_DENIED,
  NOT_PERMITTED: status.PERMISSION_DENIED,
  POLICY_DENIED: status.PERMISSION_DENIED,
  SEQUENCE_AHEAD: status.OUT_OF_RANGE,
  SLOW_CONSUMER: status.RESOURCE_EXHAUSTED,
  TOO_MANY_RUNS: status.RESOURCE_EXHAUSTED,
  TOO_MANY_INPUTS: status.RESOURCE_EXHAUSTED,
  QUOTA_EXCEEDED: status.RESOURCE_EXHAUSTED,
  BUDGET_SPENT: status.RESOURCE_EXHAUSTED,
  MESSAGE_TOO_LARGE: status.RESOURCE_EXHAUSTED,
  ADAPTER_UNAVAILABLE: status.UNAVAILABLE,
  DRAINING: status.UNAVAILABLE,
  RUN_LOG_UNAVAILABLE: status.UNAVAILABLE,
  BREAKER_OPEN: status.UNAVAILABLE,
  NOT_IMPLEMENTED: status.UNIMPLEMENTED,
  INTERNAL: status.INTERNAL,
} as const;

/** `ErrorInfo.reason`: what programs decide by. The comments of the contract say when each is returned. */
export type Reason = keyof typeof CODES;

/** A wrong field of a request. */
export interface Violation {
  field: string;
  description: string;
}

/** What an error says beside its message. */
export interface ErrorDetails {
  metadata?: Record<string, string>;
  violations?: Violation[];
  /** Milliseconds after which the same call may succeed. */
  retryAfterMs?: number;
}

/** A status of the contract, or of gRPC. The failure of an agent is none: it is data in the result of a run. */
export class DragomanError extends Error {
  override readonly name = "DragomanError";
  /** The gRPC status, e.g. `status.NOT_FOUND`. */
  readonly code: status;
  /** Absent if the status is not of the contract, as that of a broken connection. A later revision may send others. */
  readonly reason: Reason | undefined;
  readonly metadata: Record<string, string>;
  readonly violations: Violation[];
  readonly retryAfterMs: number | undefined;

  constructor(reason: Reason, message: string, details?: ErrorDetails);
  constructor(reason: Reason | undefined, message: string, details: ErrorDetails | undefined, code: status);
  constructor(reason: Reason | undefined, message: string, details: ErrorDetails = {}, code?: status) {
    super(message);
    this.reason = reason;
    this.code = code ?? (reason === undefined ? status.UNKNOWN : CODES[reason]);
    this.metadata = details.metadata ?? {};
    this.violations = details.violations ?? [];
    this.retryAfterMs = details.retryAfterMs;
  }

  /** Whether the same call may succeed later: the server names a delay, or it could not be reached. */
  get retryable(): boolean {
    return this.retryAfterMs !== undefined || (this.reason === undefined && this.code === status.UNAVAILABLE);
  }

  /** Returns the same error with another message, and with more metadata. */
  with(message: string, metadata: Record<string, string> = {}): DragomanError {
    const { violations, retryAfterMs } = this;
    return new DragomanError(
      this.reason,
      message,
      { metadata: { ...this.metadata, ...metadata }, violations, retryAfterMs },
      this.code,
    );
  }
}

/** Returns an error, INVALID_REQUEST or NOT_SUPPORTED, that names the wrong fields. */
export function fieldError(reason: "INVALID_REQUEST" | "NOT_SUPPORTED", ...violations: Violation[]): DragomanError {
  const first = violations[0];
  return new DragomanError(reason, first ? `${first.field}: ${first.description}` : "the request is invalid", {
    violations,
  });
}

/** Returns what a failed call says. */
export function fromStatus(cause: unknown): DragomanError {
  if (cause instanceof DragomanError) return cause;
  const { code = status.UNKNOWN, details = String(cause), metadata } = cause as Partial<ServiceError>;
  let reason: Reason | undefined;
  const found: ErrorDetails = {};
  for (const detail of detailsOf(metadata)) {
    const info = anyUnpack(detail, ErrorInfoSchema);
    if (info?.domain === DOMAIN) {
      reason = info.reason as Reason;
      found.metadata = info.metadata;
    }
    const bad = anyUnpack(detail, BadRequestSchema);
    if (bad) found.violations = bad.fieldViolations.map(({ field, description }) => ({ field, description }));
    const retry = anyUnpack(detail, RetryInfoSchema);
    if (retry?.retryDelay) found.retryAfterMs = durationMs(retry.retryDelay);
  }
  return new DragomanError(reason, reason === undefined ? explained(details) : details, found, code);
}

/** Returns the message of a call that reached no server, with what to do; any other as it is. */
function explained(message: string): string {
  const place = NO_SERVER.exec(message)?.[1];
  if (place === undefined) return message;
  return `no server listens at ${place}; start a router with 'dragoman serve', or name another address`;
}

function detailsOf(metadata: Metadata | undefined): Any[] {
  const data = metadata?.get(DETAILS)[0];
  if (!(data instanceof Uint8Array)) return [];
  try {
    return fromBinary(StatusSchema, data).details;
  } catch {
    return []; // not of the contract
  }
}

/** Returns an error as the status of a server's answer. */
export function toStatus(error: DragomanError): StatusObject {
  const details: Any[] = [];
  if (error.reason !== undefined) {
    details.push(
      anyPack(
        ErrorInfoSchema,
        create(ErrorInfoSchema, { domain: DOMAIN, reason: error.reason, metadata: error.metadata }),
      ),
    );
  }
  if (error.violations.length > 0) {
    details.push(anyPack(BadRequestSchema, create(BadRequestSchema, { fieldViolations: error.violations })));
  }
  if (error.retryAfterMs !== undefined) {
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay: durationFromMs(error.retryAfterMs) })));
  }
  const metadata = new Metadata();
  const whole = create(StatusSchema, { code: error.code, message: error.message, details });
  metadata.set(DETAILS, Buffer.from(toBinary(StatusSchema, whole)));
  return { code: error.code, details: error.message, metadata };
}
