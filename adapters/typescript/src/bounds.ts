import type { DescField, DescMessage } from "@bufbuild/protobuf";
import { DragomanError } from "@dragoman/client";
import { fieldError } from "@dragoman/client/grpc";
import type { JsonValue } from "@dragoman/client/v1";

import { cutText, eachField, isJson, type Fields } from "./fields.js";

const KIB = 1 << 10;
const LARGEST = 16 << 20;
const MOST_ELEMENTS = 20_000;
const MOST_VALUES = 2_000;
const DEEPEST = 32;
const LONGEST_PERIOD_S = 315_360_000n; // ten years
const SHOWN_KEY = 64; // characters of a map's key that a path shows

/** What one field may hold, in entries and bytes. */
interface Bound {
  entries: number;
  name: number;
  text: number;
  total: number;
}

const bound = (entries: number, name: number, text: number, total = LARGEST): Bound => ({ entries, name, text, total });
const BY_DEFAULT = bound(256, 512, 4 * KIB);
const ANY_TEXT = bound(256, 512, LARGEST);
const JSON_BOUND = bound(MOST_VALUES, KIB, LARGEST);

/** The bounds of the contract by message and field; "*" is any message. */
const BOUNDS: Record<string, Bound> = {
  "*.adapter": bound(256, 512, 256),
  "*.run_id": bound(256, 512, 256),
  "*.env": bound(1024, 256, 128 * KIB, 512 * KIB),
  "*.labels": bound(64, 128, KIB),
  "*.task_key": bound(256, 512, 512),
  "*.agent_id": bound(256, 512, 512),
  "*.company_id": bound(256, 512, 512),
  "Agent.id": bound(256, 512, 512),
  "ExecuteRequest.prompt": ANY_TEXT,
  "ExecuteRequest.prompt_template": bound(256, 512, 64 * KIB),
  "ExecuteRequest.system_prompt": ANY_TEXT,
  "ExecuteRequest.auth_token": bound(256, 512, 32 * KIB),
  "ExecuteRequest.mcp_servers": bound(64, 512, 4 * KIB),
  "Instructions.text": ANY_TEXT,
  "SessionSelector.handover": ANY_TEXT,
  "Context.linked_issue_ids": bound(256, 512, 512),
  "Workspace.additional_directories": bound(64, 512, 4 * KIB),
  "SkillFiles.content": bound(1024, KIB, LARGEST),
  "McpStdio.args": bound(256, 512, 32 * KIB),
  "McpStdio.env": bound(128, 256, 32 * KIB, 128 * KIB),
  "McpHttp.url": bound(256, 512, 8 * KIB),
  "McpHttp.headers": bound(64, 256, 8 * KIB, 64 * KIB),
  "Permissions.rules": bound(512, 512, 4 * KIB),
  "Fallback.adapters": bound(16, 512, 256),
  "Fallback.on": bound(64, 512, 4 * KIB),
  "Fallback.configs": bound(16, 256, 4 * KIB),
  "InputAnswer.text": ANY_TEXT,
  "InputAnswer.value_json": ANY_TEXT,
  "InputAnswer.updated_input_json": ANY_TEXT,
  "InputAnswer.message": ANY_TEXT,
};

/**
 * Refuses a request that is too large in any way.
 *
 * @param size its bytes, as they were received
 * @throws DragomanError INVALID_REQUEST or MESSAGE_TOO_LARGE
 */
export function checkBounds(schema: DescMessage, request: object, size: number): void {
  if (size > LARGEST) {
    throw new DragomanError(
      "MESSAGE_TOO_LARGE",
      `the request has ${size} bytes, and at most 16 MiB are accepted; give large inputs as files`,
    );
  }
  new Walk().message(schema, request as Fields, "");
}

class Walk {
  #elements = 0;
  #values = 0;

  message(schema: DescMessage, message: Fields, path: string): void {
    if (schema.typeName === "google.protobuf.Duration") {
      checkDuration(message as { seconds?: bigint; nanos?: number }, path);
      return;
    }
    eachField(schema, message, (field, value) =>
      this.#field(field, value, path === "" ? field.name : `${path}.${field.name}`),
    );
  }

  #field(field: DescField, value: unknown, path: string): void {
    const limit = BOUNDS[`${field.parent.name}.${field.name}`] ?? BOUNDS[`*.${field.name}`] ?? BY_DEFAULT;
    if (field.fieldKind === "list") {
      const items = value as unknown[];
      if (items.length > limit.entries) fail(path, `must not have more than ${limit.entries} entries`);
      items.forEach((item, i) => this.#one(field, item, limit, `${path}[${i}]`));
    } else if (field.fieldKind === "map") {
      this.#entries(field, Object.entries(value as object), limit, path);
    } else {
      this.#one(field, value, limit, path);
    }
  }

  #entries(field: DescField, entries: [string, unknown][], limit: Bound, path: string): void {
    if (entries.length > limit.entries) fail(path, `must not have more than ${limit.entries} entries`);
    let total = 0;
    for (const [name, value] of entries) {
      total += Buffer.byteLength(name) + sizeOf(value);
      if (Buffer.byteLength(name) > limit.name) fail(path, `a name in it must not have more than ${limit.name} bytes`);
      this.#one(field, value, limit, `${path}.${cutText(name, SHOWN_KEY)}`);
    }
    if (total > limit.total) fail(path, `its names and values must not have more than ${limit.total} bytes together`);
  }

  #one(field: DescField, value: unknown, limit: Bound, path: string): void {
    this.#count(path);
    if (sizeOf(value) > limit.text) fail(path, `must not have more than ${limit.text} bytes`);
    if (isJson(field)) this.#json(value as JsonValue, path, 0);
    else if (field.message) this.message(field.message, value as Fields, path);
  }

  #count(path: string): void {
    this.#elements += 1;
    if (this.#elements > MOST_ELEMENTS) {
      fail(
        path,
        `the request has more than ${MOST_ELEMENTS} fields, list items and map entries together; the one too many is here`,
      );
    }
  }

  /** Within JSON paths name the keys alone, as people write them. */
  #json(value: JsonValue, path: string, depth: number): void {
    if (typeof value !== "object" || value === null) {
      this.#count(path);
      if (sizeOf(value) > JSON_BOUND.text) fail(path, `must not have more than ${JSON_BOUND.text} bytes`);
      return;
    }
    if (depth >= DEEPEST) fail(path, `must not be nested more than ${DEEPEST} levels deep`);
    const entries = Object.entries(value);
    if (entries.length > JSON_BOUND.entries) fail(path, `must not have more than ${JSON_BOUND.entries} entries`);
    for (const [name, item] of entries) {
      const inner = Array.isArray(value) ? `${path}[${name}]` : `${path}.${cutText(name, SHOWN_KEY)}`;
      if (Buffer.byteLength(name) > JSON_BOUND.name)
        fail(path, `a name in it must not have more than ${JSON_BOUND.name} bytes`);
      this.#count(inner);
      this.#values += 1;
      if (this.#values > MOST_VALUES) {
        fail(
          inner,
          `the objects of the request have more than ${MOST_VALUES} values together; the one too many is here`,
        );
      }
      this.#json(item, inner, depth + 1);
    }
  }
}

function sizeOf(value: unknown): number {
  return typeof value === "string" || value instanceof Uint8Array ? Buffer.byteLength(value) : 0;
}

function checkDuration({ seconds = 0n, nanos = 0 }: { seconds?: bigint; nanos?: number }, path: string): void {
  if (seconds < 0n || nanos < 0) fail(path, "must not be negative");
  if (nanos >= 1_000_000_000) fail(path, "must have nanos below 1,000,000,000");
  if (seconds > LONGEST_PERIOD_S) fail(path, `must not be longer than ${LONGEST_PERIOD_S} s`);
}

function fail(path: string, description: string): never {
  throw fieldError("INVALID_REQUEST", { field: path, description });
}
