import assert from "node:assert/strict";
import { test } from "node:test";

import { Outcome, Severity, TestStatus, type JsonObject } from "@dragoman/client/v1";

import { hello, servedAs } from "./served.js";

const nothing = async () => {};

test("the program that an adapter or its settings name is looked for", async (t) => {
  const found = async (program: string | undefined, command: string | undefined, path: string) => {
    const { client } = await servedAs(t, { run: nothing, ...(program && { program }) });
    const config: JsonObject = command ? { command } : {};
    const asked = { config, env: { PATH: path } };
    const [detection] = await client.detect(asked);
    const { status, checks } = await client.adapter.testEnvironment(asked);
    const { available, executable = "", hint = "" } = detection ?? {};
    const failed = checks.filter(({ level }) => level === Severity.ERROR).map(({ code }) => code);
    return [available, executable, hint !== "", status === TestStatus.PASS, ...failed];
  };
  const there = [true, "/bin/sh", false, true];
  const missing = [false, "", true, false, "command_not_found"];
  assert.deepEqual(await found("sh", undefined, "/bin"), there);
  assert.deepEqual(await found("/no/such/program", "sh", "/bin"), there);
  assert.deepEqual(await found(undefined, "/bin/sh", ""), there);
  assert.deepEqual(await found("sh", undefined, "/no/such/directory"), missing);
  assert.deepEqual(await found("/bin/sh", "/no/such/program", "/bin"), missing);
  assert.deepEqual(await found("/bin", undefined, ""), missing, "a directory is no program");
  assert.deepEqual(await found(undefined, undefined, ""), [true, "", false, true], "there is nothing to look for");
});

test("an adapter that detects by itself is asked by a test of the environment too", async (t) => {
  const detect = async () => ({ available: false, message: "It is not logged in.", hint: "Log in." });
  const { client } = await servedAs(t, { run: nothing, program: "/bin/sh", detect });
  const { checks } = await client.adapter.testEnvironment({});
  const [failed] = checks.filter(({ level }) => level === Severity.ERROR);
  assert.deepEqual([failed?.message, failed?.hint], ["It is not logged in.", "Log in."]);
});

test("a run gets the program that its settings name", async (t) => {
  const { client } = await servedAs(t, {
    program: "usual",
    run: async (run) => ({ outcome: Outcome.SUCCEEDED, summary: run.program }),
  });
  assert.equal((await client.execute(hello()).wait()).summary, "usual");
  assert.equal((await client.execute({ ...hello(), config: { command: "other" } }).wait()).summary, "other");
});
