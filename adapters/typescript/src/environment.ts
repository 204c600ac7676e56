import { posix } from "node:path";

import type { ExecuteRequest } from "@dragoman/client/v1";

import { isSecretEntry } from "./redact/names.js";
import { traceVariables, type TraceContext } from "./trace.js";

const DEFAULT_PREFIX = "DRAGOMAN";
/** Where programs are looked for if there is no PATH. */
export const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/** The variable that marks all processes of a run. */
export const MARKER = "DRAGOMAN_RUN_MARKER";

// What an agent inherits: the environment of a service holds secrets that no model should see, and variables that
// change how programs work.
const INHERITED = new Set(
  `PATH HOME USER LOGNAME SHELL TMPDIR TMP TEMP LANG LANGUAGE TZ TERM COLORTERM NO_COLOR
  HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
  SSL_CERT_FILE SSL_CERT_DIR NIX_SSL_CERT_FILE NODE_EXTRA_CA_CERTS
  REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO AWS_CA_BUNDLE SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS
  NVM_DIR NVM_BIN FNM_DIR FNM_MULTISHELL_PATH VOLTA_HOME PNPM_HOME N_PREFIX
  BUN_INSTALL DENO_INSTALL ASDF_DIR ASDF_DATA_DIR PYENV_ROOT RBENV_ROOT
  CARGO_HOME RUSTUP_HOME GOPATH GOROOT JAVA_HOME SDKMAN_DIR ANDROID_HOME
  HOMEBREW_PREFIX HOMEBREW_CELLAR HOMEBREW_REPOSITORY NIX_PATH NIX_PROFILES`.split(/\s+/),
);

// Prefixes that belong to other programs, which would take the run's variables for their own.
const RESERVED =
  `AIDER AMP ANTHROPIC AUGMENT AZURE AWS BEDROCK CEREBRAS CLAUDE CLAUDECODE CLINE CODEX COHERE COPILOT CRUSH CURSOR
  DEEPSEEK FACTORY FIREWORKS GEMINI GOOGLE GOOSE GROK GROQ HERMES HF HUGGINGFACE KIMI MINIMAX MISTRAL MOONSHOT OLLAMA
  OPENAI OPENCLAW OPENCODE OPENROUTER PERPLEXITY PI QWEN TOGETHER VERTEX XAI ZAI GITHUB GH GITLAB
  BUN CARGO CI CURL DBUS DENO DOCKER DYLD GIT GLIBC GO HOME HTTP HTTPS JAVA KUBERNETES LANG LC LD MALLOC NIX NODE NO
  NPM PATH PERL PIP PYTHON REQUESTS RUBY RUST SHELL SSH SSL SYSTEMD TERM TMP TMPDIR USER UV VIRTUAL XDG`.split(/\s+/);

/** Variables by their names. */
export type Variables = Record<string, string>;

function prefixOf(request: ExecuteRequest): string {
  return (request.brand?.envPrefix || DEFAULT_PREFIX).replace(/_+$/, "");
}

/** Returns what is wrong with a caller's prefix; undefined if nothing is. */
export function wrongPrefix(prefix: string): string | undefined {
  if (!/^[A-Z][A-Z0-9_]{0,63}$/.test(prefix)) {
    return "must be an upper-case letter, then up to 63 upper-case letters, digits and underscores";
  }
  const name = prefix.replace(/_+$/, "");
  const taken = RESERVED.find((reserved) => name === reserved || name.startsWith(`${reserved}_`));
  return taken && `${taken} belongs to another program, which would take the run's variables for its own`;
}

/** Returns the variables that every run has. What is absent is not set. */
export function runVariables(request: ExecuteRequest): Variables {
  const { agent, context } = request;
  const all = {
    AGENT_ID: agent?.id,
    COMPANY_ID: agent?.companyId,
    API_URL: request.apiUrl,
    RUN_ID: request.runId,
    TASK_ID: context?.taskId || context?.issueId,
    WAKE_REASON: context?.wakeReason,
    WAKE_COMMENT_ID: context?.wakeCommentId || context?.commentId,
    APPROVAL_ID: context?.approvalId,
    APPROVAL_STATUS: context?.approvalStatus,
    LINKED_ISSUE_IDS: context?.linkedIssueIds.join(","),
    API_KEY: request.authToken,
  };
  const isSet = (entry: [string, string | undefined]): entry is [string, string] => Boolean(entry[1]);
  return Object.fromEntries(
    Object.entries(all)
      .filter(isSet)
      .map(([name, value]) => [`${prefixOf(request)}_${name}`, value]),
  );
}

/** Where the variables of a program come from, beside the request. */
export interface VariableSources {
  /** The adapter's own, of which a few are inherited. */
  own: NodeJS.ProcessEnv;
  /** Of the program, as the adapter starts it. */
  command: Variables;
  /** Of the settings; they win. */
  config: Variables;
  /** The run's directory for temporary files. */
  temporary: string;
  /** The trace that the program is to continue. */
  trace: TraceContext;
}

/** Returns all variables of a program that is started for a run, but the marker. */
export function variablesOf(request: ExecuteRequest, sources: VariableSources): Variables {
  const prefixes = [prefixOf(request), DEFAULT_PREFIX].map((prefix) => `${prefix}_`);
  const inherited = Object.entries(sources.own).filter((entry): entry is [string, string] => {
    const [name, value = ""] = entry;
    const isListed = INHERITED.has(name) || name.startsWith("LC_") || name.startsWith("XDG_");
    return isListed && !prefixes.some((prefix) => name.startsWith(prefix)) && !isSecretEntry(name, value);
  });
  const all: Variables = {
    ...Object.fromEntries(inherited),
    ...runVariables(request),
    TMPDIR: sources.temporary,
    ...traceVariables(sources.trace),
    ...sources.command,
    ...sources.config,
    ...request.env,
  };
  return { ...all, PATH: all["PATH"] || DEFAULT_PATH };
}

/** Returns a path from / on, without `..`. Links are not followed: their targets may change meanwhile. */
export function absolutePath(path: string, cwd: string): string {
  return posix.normalize(posix.resolve(cwd || "/", path));
}
