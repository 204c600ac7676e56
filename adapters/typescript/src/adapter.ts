import { clone, create } from "@bufbuild/protobuf";
import {
  CapabilityOrigin,
  DescribeResponseSchema,
  Duty,
  Feature,
  PermissionMode,
  type CapabilitiesSchema,
  type DescribeResponse,
  type DetectRequest,
  type DetectionSchema,
  type EnvironmentCheckSchema,
  type ExecuteRequest,
  type JsonObject,
  type MessageInitShape,
  type ResultSchema,
  type TestEnvironmentRequest,
} from "@dragoman/client/v1";
import { randomBytes } from "node:crypto";

import type { Run } from "./run.js";

/** The revision of the contract that this package implements. */
export const REVISION = 1;

const TYPE_SHAPE = /^[a-z][a-z0-9_]{0,63}$/;

/** Writes a line of the server's log. */
export type Log = (
  level: "info" | "warning" | "error",
  message: string,
  fields?: Record<string, string | number>,
) => void;

/** What an author supplies. */
export interface Adapter {
  /**
   * What the adapter is: its type, label, version, capabilities, the schema of its settings. The server adds what it
   * knows itself: revision, instance, process, and what this package does of a router's duties.
   */
  describe: MessageInitShape<typeof DescribeResponseSchema>;

  /**
   * Does one run. It emits the agent's events and returns how the run ended: nothing means that it succeeded, or was
   * stopped if it was asked to. A `Failure` that it throws is the agent's failure; any other error is a fault of the
   * adapter, which is logged and shown to no caller.
   */
  run: (run: Run) => Promise<MessageInitShape<typeof ResultSchema> | void>;

  /** Checks a request beyond its schema and its capabilities, before the run exists; throws a `DragomanError`. */
  accept?: (request: ExecuteRequest) => void;

  /**
   * The agent's program: a name on the PATH, or a path. The setting `command` names another one. Without `detect`, the
   * server looks for it; without either, there is nothing to look for.
   */
  program?: string;

  /** Looks for the agent; a test of the environment asks it, too. Absent: the server looks for `program`. */
  detect?: (request: DetectRequest, signal: AbortSignal) => Promise<MessageInitShape<typeof DetectionSchema>>;

  /** Checks what else a run with this configuration needs; settings, directory and program are checked already. */
  checks?: (
    request: TestEnvironmentRequest,
    signal: AbortSignal,
  ) => Promise<MessageInitShape<typeof EnvironmentCheckSchema>[]>;
}

/** Returns capabilities of an adapter that declares these features. */
export function features(
  permissionMode: PermissionMode,
  ...declared: Feature[]
): MessageInitShape<typeof CapabilitiesSchema> {
  return { permissionMode, items: declared.map((feature) => ({ feature, origin: CapabilityOrigin.DECLARED })) };
}

/** Returns the program of a run with these settings; empty if there is none. */
export function programOf(adapter: Adapter, config: JsonObject): string {
  const { command } = config;
  return (typeof command === "string" && command) || (adapter.program ?? "");
}

/**
 * Returns the whole description of an adapter.
 *
 * @throws Error its type has another shape than types have
 */
export function describe(adapter: Adapter): DescribeResponse {
  const described = clone(DescribeResponseSchema, create(DescribeResponseSchema, adapter.describe));
  if (!TYPE_SHAPE.test(described.adapter))
    throw new Error(`the type ${JSON.stringify(described.adapter)} does not match ${TYPE_SHAPE.source}`);
  return Object.assign(described, {
    label: described.label || described.adapter,
    revision: REVISION,
    instanceId: randomBytes(16).toString("hex"),
    pid: BigInt(process.pid),
    batching: true,
    duties: [Duty.REDACTION, Duty.LIMITS, Duty.UNATTENDED, Duty.REFUSALS],
  });
}
