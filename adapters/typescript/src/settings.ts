/** Checks a request against what an adapter says of itself, and makes of it what a run needs. */
import { create } from "@bufbuild/protobuf";
import { accessSync, constants, statSync } from "node:fs";
import { isAbsolute } from "node:path";

import { DragomanError, type Violation } from "@dragoman/client";
import { fieldError } from "@dragoman/client/grpc";
import {
  durationFromMs,
  durationMs,
  Feature,
  PermissionMode,
  type DescribeResponse,
  type ExecuteRequest,
  type JsonObject,
  type JsonValue,
  type Limits,
  LimitsSchema,
} from "@dragoman/client/v1";

import type { TimeLimits } from "./clocks.js";
import { runVariables, wrongPrefix } from "./environment.js";
import { cutText } from "./fields.js";
import { Redactor } from "./redact/redactor.js";
import { secretsOf } from "./redact/sources.js";
import type { Schema } from "./schema.js";
import { sessionOf, type SessionChoice } from "./sessions.js";
import { readSkills, type Skill } from "./skills.js";

const DEFAULT_GRACE_MS = 15_000;
const ZERO_BYTE = "\0";

/** What a request comes down to. */
export interface Settings extends TimeLimits {
  /** Checked against the schema. */
  config: JsonObject;
  /** Absolute and existing; empty if the adapter has no workspace. */
  cwd: string;
  prompt: string;
  /** Variables of the settings. */
  env: Record<string, string>;
  redactor: Redactor;
  session: SessionChoice;
  skills: Skill[];
  graceMs: number;
  /** 0: no limit. */
  outputBytes: number;
}

/** Returns the limits in effect. */
export function limitsOf(settings: Settings): Limits {
  const limit = (ms: number) => (ms > 0 ? durationFromMs(ms) : undefined);
  const { startUp, idle, wall, toolCall, graceMs, outputBytes } = settings;
  return create(LimitsSchema, {
    startUp: limit(startUp),
    idle: limit(idle),
    wall: limit(wall),
    toolCall: limit(toolCall),
    grace: durationFromMs(graceMs),
    outputBytes: BigInt(outputBytes),
  });
}

/**
 * Checks a request. No secret of it is in the error.
 *
 * @throws DragomanError NOT_SUPPORTED, CAPABILITY_MISSING or INVALID_REQUEST
 */
export function settingsOf(request: ExecuteRequest, described: DescribeResponse, schema: Schema): Settings {
  const redactor = new Redactor(secretsOf(request));
  try {
    refuse(request, described);
    return checked(request, described, schema, redactor);
  } catch (error) {
    throw error instanceof DragomanError ? redactedError(error, redactor) : error;
  }
}

function redactedError(error: DragomanError, redactor: Redactor): DragomanError {
  const show = (text: string) => redactor.text(text);
  const violations = error.violations.map(({ field, description }) => ({
    field: show(field),
    description: show(description),
  }));
  const metadata = Object.fromEntries(Object.entries(error.metadata).map(([key, value]) => [key, show(value)]));
  return new DragomanError(error.reason, show(error.message), { violations, metadata }, error.code);
}

function checked(request: ExecuteRequest, described: DescribeResponse, schema: Schema, redactor: Redactor): Settings {
  const config = request.config ?? request.agent?.adapterConfig ?? {};
  const { skills, wrong: wrongSkills } = readSkills(request.skills);
  const wrong = [...schema.check(config), ...wrongFields(request), ...wrongSkills];
  const configured = config["cwd"];
  const isConfigured = !request.workspace?.cwd && typeof configured === "string" && configured !== "";
  const cwd = isConfigured ? configured : (request.workspace?.cwd ?? "");
  const hasWorkspace = has(described, Feature.WORKSPACE);
  const problem = hasWorkspace ? directoryProblem(cwd) : undefined;
  if (problem) wrong.push({ field: isConfigured ? "config.cwd" : "workspace.cwd", description: problem });
  if (wrong.length > 0) throw fieldError("INVALID_REQUEST", ...wrong);
  const { limits, task } = request;
  const seconds = (key: string, absent: number) => (typeof config[key] === "number" ? config[key] * 1000 : absent);
  const ms = (value: Limits["wall"]) => (value ? durationMs(value) : 0);
  return {
    config,
    cwd: hasWorkspace ? cwd : "",
    prompt: task.case === "prompt" ? task.value : "",
    env: textsOf(config["env"]),
    redactor,
    session: sessionOf(request, described, hasWorkspace ? cwd : ""),
    skills,
    startUp: ms(limits?.startUp),
    idle: ms(limits?.idle),
    toolCall: ms(limits?.toolCall),
    wall: limits?.wall ? durationMs(limits.wall) : seconds("timeoutSec", 0),
    graceMs: limits?.grace ? durationMs(limits.grace) : seconds("graceSec", DEFAULT_GRACE_MS),
    outputBytes: Number(limits?.outputBytes ?? 0n),
  };
}

function textsOf(value: JsonValue | undefined): Record<string, string> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return {};
  return Object.fromEntries(
    Object.entries(value).filter((entry): entry is [string, string] => typeof entry[1] === "string"),
  );
}

/** Returns whether a feature is declared. */
export function has(described: DescribeResponse, feature: Feature): boolean {
  return described.capabilities?.items.some((item) => item.feature === feature) ?? false;
}

/** Refuses set fields that an adapter cannot honour. */
function refuse(request: ExecuteRequest, described: DescribeResponse): void {
  const { session, permissions } = request;
  const selector = session?.selector;
  const isHandle = selector?.case === "handle";
  const fields: [name: string, isSet: boolean, honoured: Feature | "by a router"][] = [
    ["prompt_template", request.task.case === "promptTemplate", "by a router"],
    ["session.handover", Boolean(session?.handover), "by a router"],
    ["fallback", request.fallback !== undefined, "by a router"],
    ["limits.budget", request.limits?.budget !== undefined, "by a router"],
    ["admission", request.admission !== undefined, "by a router"],
    ["agent_name", request.agentName !== "", "by a router"],
    ["session.key", selector?.case === "key", "by a router"],
    ["session.resume_run_id", selector?.case === "resumeRunId", "by a router"],
    ["skills", request.skills.length > 0, Feature.SKILLS],
    ["mcp_servers", request.mcpServers.length > 0, Feature.MCP_SERVERS],
    ["system_prompt", request.systemPrompt !== "", Feature.SYSTEM_PROMPT],
    ["instructions", request.instructions !== undefined, Feature.INSTRUCTIONS],
    ["model", request.model !== "", Feature.MODEL_CHOICE],
    ["track_changes", request.trackChanges, Feature.CHANGES],
    ["attachments", request.attachments.length > 0, Feature.ATTACHMENTS],
    ["session.handle", isHandle, Feature.RESUME],
    ["session.fork", isHandle && Boolean(session?.fork), Feature.FORK],
    ["auth_token", request.authToken !== "", Feature.AUTH_TOKEN],
  ];
  for (const [field, isSet, honoured] of fields) {
    if (!isSet) continue;
    if (honoured === "by a router")
      throw fieldError("NOT_SUPPORTED", { field, description: "only a router does that; leave it out" });
    if (!has(described, honoured)) {
      throw fieldError("NOT_SUPPORTED", {
        field,
        description: `${described.label} does not support it; leave it out`,
      });
    }
  }
  const isAsked =
    permissions &&
    (permissions.rules.length > 0 ||
      permissions.defaultDecision !== 0 ||
      permissions.nativeMode !== "" ||
      permissions.autoApprove);
  const mode = described.capabilities?.permissionMode;
  const isKept =
    mode === PermissionMode.STRICT || mode === PermissionMode.PERMISSIVE || has(described, Feature.PERMISSION_REQUESTS);
  if (isAsked && !isKept) {
    throw fieldError("NOT_SUPPORTED", {
      field: "permissions",
      description: `${described.label} never asks for permission; leave permissions out`,
    });
  }
  const missing = request.requiredCapabilities
    .filter((feature) => !has(described, feature))
    .map((feature) => nameOf(feature))
    .join(", ");
  if (missing !== "")
    throw new DragomanError("CAPABILITY_MISSING", `${described.adapter} cannot: ${missing}`, {
      metadata: { missing },
    });
}

function nameOf(feature: Feature): string {
  return Feature[feature] === undefined ? String(feature) : `FEATURE_${Feature[feature]}`;
}

function wrongFields(request: ExecuteRequest): Violation[] {
  const wrong: Violation[] = [];
  const fail = (field: string, description: string) => wrong.push({ field, description });
  const { session } = request;
  const isHandle = session?.selector.case === "handle";
  const isFresh = session?.selector.case === "fresh";
  if (isFresh && !session.selector.value) fail("session.fresh", "must be true, or absent");
  if (session?.fork && !isHandle) fail("session.fork", "a session to fork is missing; give session.handle");
  if (session?.reason && !isFresh) fail("session.reason", "goes with session.fresh");
  request.workspace?.additionalDirectories.forEach((directory, i) => {
    const problem = directoryProblem(directory);
    if (problem) fail(`workspace.additional_directories[${i}]`, problem);
  });
  const prefixProblem = request.brand?.envPrefix ? wrongPrefix(request.brand.envPrefix) : undefined;
  if (prefixProblem) fail("brand.env_prefix", prefixProblem);
  for (const [name, value] of Object.entries(request.env)) {
    if (name === "" || /[=\0]/.test(name))
      fail("env", "a variable's name must not be empty, nor contain '=' or a zero byte");
    else if (value.includes(ZERO_BYTE))
      fail(`env.${name.slice(0, 64)}`, "a variable's value must not contain a zero byte");
  }
  for (const [name, value] of Object.entries(runVariables(request))) {
    if (value.includes(ZERO_BYTE)) fail(name, "must not contain a zero byte");
  }
  return wrong;
}

/** Returns what keeps an agent from working in a directory; undefined if nothing does. */
export function directoryProblem(path: string): string | undefined {
  if (path === "") return "a working directory is required; give the absolute path of an existing directory";
  const shown = JSON.stringify(cutText(path, 300));
  if (path.includes(ZERO_BYTE)) return `${shown} contains a zero byte`;
  if (!isAbsolute(path)) return `${shown} is not an absolute path; give the path from / on`;
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found) return `${shown} does not exist on the adapter's machine, or may not be reached`;
  if (!found.isDirectory()) return `${shown} is no directory`;
  try {
    accessSync(path, constants.R_OK | constants.X_OK);
    return undefined;
  } catch {
    return `${shown} may not be entered; give the adapter's user access to it`;
  }
}
