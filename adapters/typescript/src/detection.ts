/** Looks for an agent's program. */
import { create } from "@bufbuild/protobuf";
import {
  AuthState,
  DetectionConfidence,
  DetectionSchema,
  EnvironmentCheckSchema,
  Severity,
  type DetectRequest,
  type Detection,
  type EnvironmentCheck,
} from "@dragoman/client/v1";

import { programOf, type Adapter } from "./adapter.js";
import { DEFAULT_PATH } from "./environment.js";
import { isExecutable, placesOf } from "./process.js";

/** Looks for the agent; undefined if there is nothing to look for. */
export async function look(
  adapter: Adapter,
  request: DetectRequest,
  signal: AbortSignal,
): Promise<Detection | undefined> {
  if (adapter.detect) return create(DetectionSchema, await adapter.detect(request, signal));
  const program = programOf(adapter, request.config ?? {});
  if (program === "") return undefined;
  const path = request.env["PATH"] || process.env["PATH"] || DEFAULT_PATH;
  const executable = placesOf(program, process.cwd(), path).find(isExecutable);
  if (executable === undefined) {
    return create(DetectionSchema, {
      confidence: DetectionConfidence.ABSENT,
      message: `${program} was not found.`,
      hint: "Install it, or set config.command to its path.",
    });
  }
  return create(DetectionSchema, {
    available: true,
    executable,
    auth: AuthState.UNKNOWN,
    confidence: DetectionConfidence.EXECUTABLE_ONLY,
    message: `${program} is installed.`,
  });
}

/** Returns whether the agent is there, as a check of the environment. */
export function checkOf({ available, message, hint }: Detection): EnvironmentCheck {
  const found = { level: Severity.INFO, code: "command_found", message };
  const missing = { level: Severity.ERROR, code: "command_not_found", message, hint };
  return create(EnvironmentCheckSchema, available ? found : missing);
}
