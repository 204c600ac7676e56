import type { ExecuteRequest, JsonObject, JsonValue } from "@dragoman/client/v1";

import { isCallerSecret, isCallerSecretName, isSecretEntry, kindOf, NUMERIC } from "./names.js";

const SCHEME = /^(?:bearer|basic|token) +(\S+)$/i;
const URLS = /[A-Za-z][A-Za-z0-9+.-]*:\/\/[^\s"'<>]+/g;
const FLAG = /^--?[A-Za-z][\w-]*$/;
const ASSIGNMENT = /(--?[A-Za-z][\w-]*|[A-Za-z_][\w.-]*)(?:\s*=\s*|:\s*)("[^"]*"|'[^']*'|[^\s"';|&]+)/g;
const HEADER = /(?:authorization|cookie)\s*[:=]\s*[A-Za-z]+\s+([^\s"']+)/gi;
const REFERENCE = /^\$(?:\w+|\{\w+\})$/;
const PLAIN_WORD = /^(?:[a-z]{1,12}|[A-Z]{1,12}|[A-Z][a-z]{1,11})$/;
// Values that stand under secret names, and in every text.
const COMMON = new Set(["oauth2", "read-only", "read-write", "us-east-1", "localhost"]);

/** Returns the secrets of a request: the token whatever it is, others unless they are words. */
export function secretsOf(request: ExecuteRequest): string[] {
  const secrets = new Set<string>();
  if (request.authToken !== "") secrets.add(request.authToken);
  const add = (value: string | undefined) => {
    if (value && !PLAIN_WORD.test(value) && !COMMON.has(value.toLowerCase())) secrets.add(value);
  };
  variables(request.env, add);
  settings("", request.config ?? request.agent?.adapterConfig ?? {}, add);
  urls(request.apiUrl, add);
  for (const { transport } of request.mcpServers) {
    if (transport.case === "stdio") {
      variables(transport.value.env, add);
      commandLine(transport.value.args, add);
    } else if (transport.case === "http") {
      variables(transport.value.headers, add);
      urls(transport.value.url, add);
    }
  }
  return [...secrets];
}

type Add = (value: string | undefined) => void;

function variables(all: Record<string, string>, add: Add): void {
  for (const [name, value] of Object.entries(all)) variable(name, value, add);
}

function variable(name: string, value: string, add: Add): void {
  if (isCallerSecret(name, value)) withScheme(value, add);
  urls(value, add);
}

function withScheme(value: string, add: Add): void {
  add(value);
  add(SCHEME.exec(value)?.[1]);
}

function settings(key: string, all: JsonObject, add: Add): void {
  const areVariables = /^(?:env|headers)$/i.test(key);
  for (const [name, value] of Object.entries(all)) {
    if (areVariables && typeof value === "string") variable(name, value, add);
    else setting(name, value, add);
  }
}

function setting(key: string, value: JsonValue, add: Add): void {
  if (typeof value === "string") {
    if (isCallerSecretName(key) && !NUMERIC.test(value)) withScheme(value, add);
    urls(value, add);
  } else if (Array.isArray(value)) {
    for (const item of value) setting(key, item, add);
    commandLine(
      value.filter((item) => typeof item === "string"),
      add,
    );
  } else if (typeof value === "object" && value !== null) {
    settings(key, value, add);
  }
}

/** Adds the secrets on a command line: --token X, --api-key=X, X_TOKEN=X, Authorization: X. */
function commandLine(words: string[], add: Add): void {
  let isAfterFlag = false;
  for (const item of words) {
    if (isAfterFlag && !item.startsWith("-")) add(item);
    isAfterFlag = FLAG.test(item) && kindOf(item) === "secret";
    for (const [, name = "", quoted = ""] of item.matchAll(ASSIGNMENT)) {
      const bare = quoted.replace(/^["']+|["']+$/g, "");
      if (isSecretEntry(name, bare) && !REFERENCE.test(bare)) add(bare);
    }
    for (const match of item.matchAll(HEADER)) add(match[1]);
    urls(item, add);
  }
}

function urls(text: string, add: Add): void {
  for (const [found] of text.matchAll(URLS)) {
    const parsed = URL.parse?.(found) ?? parseUrl(found);
    if (!parsed) continue;
    for (const part of [parsed.password || parsed.username]) {
      add(part);
      add(decoded(part));
    }
    for (const [name, value] of parsed.searchParams) {
      if (!isCallerSecretName(name) || NUMERIC.test(value)) continue;
      add(value);
      add(encodeURIComponent(value));
    }
  }
}

function parseUrl(text: string): URL | null {
  try {
    return new URL(text);
  } catch {
    return null; // it only looked like one
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // it is as it stands there
  }
}
