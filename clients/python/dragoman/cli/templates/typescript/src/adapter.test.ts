import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";

import { Server } from "@dragoman/adapter";
import { Client } from "@dragoman/client";
import { Outcome } from "@dragoman/client/v1";

import { adapter } from "./adapter.js";

test("a run succeeds and reports", async (t) => {
  const directory = mkdtempSync(join(tmpdir(), "newagent-")); // a short path, as sockets need it
  const address = `unix:${join(directory, "socket")}`;
  const server = new Server(adapter, () => {});
  await server.listen(address);
  const client = new Client(address);
  t.after(async () => {
    client.close();
    await server.stop(1000);
    rmSync(directory, { recursive: true });
  });

  // The real program, through the contract.
  const run = client.execute({
    adapter: "newagent",
    task: { case: "prompt", value: "Hello." },
    workspace: { cwd: directory },
    config: { command: resolve("newagent") },
  });
  const tools: string[] = [];
  for await (const { body } of run) if (body.case === "toolCall") tools.push(body.value.name);
  assert.equal(run.result?.outcome, Outcome.SUCCEEDED, JSON.stringify(run.result?.failure));
  assert.equal(run.result?.summary, "Read a prompt of 6 bytes.");
  assert.deepEqual(tools, ["list"]);
  assert.equal(run.result?.treeConfirmedDead, true);
});
