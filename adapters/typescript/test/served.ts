/** Serves an adapter in a test, with a client of it. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { features, Server, type Adapter, type Run } from "@dragoman/adapter";
import { Client } from "@dragoman/client";
import {
  Feature,
  PermissionMode,
  type AgentEvent,
  type ExecuteRequestSchema,
  type MessageInitShape,
} from "@dragoman/client/v1";

export type Request = MessageInitShape<typeof ExecuteRequestSchema>;

/** Serves an adapter that does this for each run. */
export function served(t: TestContext, run: Adapter["run"], ...declared: Feature[]) {
  return servedAs(t, { run }, ...declared);
}

/** Serves an adapter that has more than a run. */
export async function servedAs(t: TestContext, own: Omit<Adapter, "describe">, ...declared: Feature[]) {
  const folder = mkdtempSync(join(tmpdir(), "server-"));
  const address = `unix:${join(folder, "a.sock")}`;
  const logged: string[] = [];
  const capabilities = features(PermissionMode.STRICT, Feature.PROMPT, Feature.PERMISSION_REQUESTS, ...declared);
  const server = new Server(
    { describe: { adapter: "tested", version: "3", capabilities }, ...own },
    (_level, message, fields) => {
      logged.push(`${message} ${JSON.stringify(fields)}`);
    },
  );
  await server.listen(address);
  const client = new Client(address);
  t.after(async () => {
    client.close();
    await server.stop(0);
    rmSync(folder, { recursive: true });
  });
  return { server, client, logged, address };
}

export const hello = (value = "hello") => ({ task: { case: "prompt" as const, value } });

export async function eventsOf(run: AsyncIterable<AgentEvent>): Promise<AgentEvent[]> {
  const events: AgentEvent[] = [];
  for await (const event of run) events.push(event);
  return events;
}

export const forever = (run: Run) =>
  new Promise<void>((_, reject) => run.signal.addEventListener("abort", () => reject(run.signal.reason as Error)));
