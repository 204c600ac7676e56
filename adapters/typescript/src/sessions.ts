/** What a run does with the session that was asked for, and what its router is to store afterwards. */
import {
  Feature,
  FailureKind,
  SessionChange,
  SessionDisposition,
  type DescribeResponse,
  type ExecuteRequest,
  type JsonObject,
  type Result,
  type SessionHandle,
} from "@dragoman/client/v1";
import { realpathSync } from "node:fs";
import { resolve } from "node:path";

/** How a run uses the requested session. */
export interface SessionChoice {
  disposition: SessionDisposition;
  /** The agent's own ID of the session to resume or fork; empty: a new one. */
  nativeId: string;
  /** Why the requested session is not resumed, for people. */
  reason: string;
}

/** Decides about the requested session. One of another adapter or directory is not resumed, and the run says why. */
export function sessionOf({ session }: ExecuteRequest, described: DescribeResponse, cwd: string): SessionChoice {
  const refused = (reason: string) => ({ disposition: SessionDisposition.RESUME_REFUSED, nativeId: "", reason });
  if (session?.selector.case !== "handle") {
    return session?.reason
      ? refused(session.reason)
      : { disposition: SessionDisposition.NEW, nativeId: "", reason: "" };
  }
  const handle = session.selector.value;
  const nativeId = handle.nativeId || parameter(handle, "sessionId") || parameter(handle, "session_id");
  const directory = handle.cwd || parameter(handle, "cwd");
  if (handle.adapter !== "" && ![described.adapter, ...described.aliases].includes(handle.adapter))
    return refused(`the session belongs to ${handle.adapter}`);
  if (nativeId === "") return refused("the handle names no session");
  if (directory !== "" && cwd !== "" && real(directory) !== real(cwd))
    return refused(`the session belongs to ${directory}`);
  return { disposition: session.fork ? SessionDisposition.FORK : SessionDisposition.RESUME, nativeId, reason: "" };
}

/** Returns the session that no other run may use at the same time; empty for a new one, or a copy. */
export function sessionInUse({ disposition, nativeId }: SessionChoice): string {
  return disposition === SessionDisposition.RESUME ? nativeId : "";
}

/** Fills in what the stored session is to be: a handle's fields, and to forget one that is gone. */
export function completeSession(result: Result, described: DescribeResponse, cwd: string): void {
  const handle = result.session?.handle;
  if (handle) {
    handle.adapter ||= described.adapter;
    handle.adapterVersion ||= described.version;
    handle.cwd ||= cwd;
    handle.params ??= { sessionId: handle.nativeId, cwd: handle.cwd } satisfies JsonObject;
  } else if (!result.session && result.failure?.kind === FailureKind.SESSION_LOST && canResume(described)) {
    result.session = { $typeName: "dragoman.v1.SessionUpdate", change: SessionChange.CLEAR };
  }
}

function canResume(described: DescribeResponse): boolean {
  return described.capabilities?.items.some(({ feature }) => feature === Feature.RESUME) ?? false;
}

function parameter({ params }: SessionHandle, name: string): string {
  const value = params?.[name];
  return typeof value === "string" ? value : "";
}

/** Returns a directory without links: two paths may be one. */
function real(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return resolve(path); // it does not exist here
  }
}
