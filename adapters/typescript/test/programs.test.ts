import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { Failure } from "@dragoman/adapter";
import { Client } from "@dragoman/client";
import { FailureKind, Feature, Outcome, type Result } from "@dragoman/client/v1";

import { eventsOf, forever, hello, served } from "./served.js";

/** Prints a line, and lives for a minute, or until SIGTERM. */
const living = { path: "/bin/sh", args: ["-c", "echo $$; exec sleep 60"] };

const isAlive = (pid: number) => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

function failureIn(result: Result): [kind: string, code: string] {
  return [FailureKind[result.failure?.kind ?? 0] ?? "", result.failure?.code ?? ""];
}

test("a handle that throws ends its program and its run alone", { timeout: 20_000 }, async (t) => {
  const began = performance.now();
  let pid = 0;
  const { client, logged } = await served(t, async (run) => {
    if (run.prompt === "other") return forever(run);
    const exit = await run.exec(living, (line) => {
      pid = Number(line.text);
      throw run.prompt === "fail"
        ? new Failure(FailureKind.RATE_LIMITED, "too_many", "Wait.")
        : new Error("a bug near the line");
    });
    return exit.result();
  });
  const other = client.execute(hello("other"));
  await other.accepted();
  const result = await client.execute(hello("bug")).wait();
  assert.deepEqual(failureIn(result), ["INTERNAL", "adapter_failed"]);
  const place = /^The adapter failed \(Error at programs\.test\.js:\d+\)\. Its log has more/;
  assert.match(result.failure?.message ?? "", place);
  assert.ok(!result.failure?.message.includes("a bug"));
  assert.ok(logged.some((line) => line.startsWith("the adapter failed") && line.includes("a bug near the line")));
  assert.equal(result.treeConfirmedDead, true);
  assert.ok(!isAlive(pid));
  assert.deepEqual(failureIn(await client.execute(hello("fail")).wait()), ["RATE_LIMITED", "too_many"]);
  assert.ok(performance.now() - began < 15_000, "the program is not waited for");
  await other.cancel({ graceMs: 0 });
});

test("an event that is none ends its run alone, also while the program lives", { timeout: 20_000 }, async (t) => {
  const { client } = await served(t, async (run) => {
    const value = 5 as unknown as string;
    const text = { itemId: "a", content: { case: "whole" as const, value } };
    const exit = await run.exec(living, () => run.emit({ case: "text", value: text }));
    return exit.result();
  });
  assert.deepEqual(failureIn(await client.execute(hello()).wait()), ["INTERNAL", "adapter_failed"]);
});

test("a result that is none ends its run as a fault of the adapter", { timeout: 20_000 }, async (t) => {
  const { client } = await served(t, async () => ({ outcome: Outcome.SUCCEEDED, exitCode: 2 ** 40 }));
  assert.deepEqual(failureIn(await client.execute(hello()).wait()), ["INTERNAL", "adapter_failed"]);
});

test("a program that its adapter leaves behind ends with the run", { timeout: 20_000 }, async (t) => {
  let pid = 0;
  const { client } = await served(t, async (run) => {
    const { program } = run.spawn(living);
    pid = program?.process.pid ?? 0;
    if (run.prompt === "bug") throw new Error("a bug");
    return { outcome: Outcome.SUCCEEDED, treeConfirmedDead: true };
  });
  for (const prompt of ["bug", "hello"]) {
    const result = await client.execute(hello(prompt)).wait();
    assert.equal(result.treeConfirmedDead, true);
    assert.ok(pid > 0 && !isAlive(pid), prompt);
  }
});

test("a run that is to stop allows nothing, and drops its questions", { timeout: 20_000 }, async (t) => {
  let seen: unknown[] = [];
  const { client } = await served(t, async (run) => {
    await run.text("a", "x");
    await forever(run).catch(() => {});
    const decision = await run.permit({ toolName: "Bash" });
    const { answer } = await run.ask({ title: "Which?", options: [{ id: "a" }] });
    seen = [decision.isAllowed, answer.optionIds];
  });
  for (const permissions of [{ interactive: true }, { autoApprove: true }]) {
    seen = [];
    const run = client.execute({ ...hello(), permissions });
    await run.accepted();
    await run.cancel({ graceMs: 10_000 });
    assert.deepEqual(seen, [false, []]);
    assert.ok(!(await eventsOf(run)).some(({ body }) => body.case === "inputRequest"));
    assert.equal(run.result?.outcome, Outcome.CANCELLED);
  }
});

test("a program that cannot be started is reported the same by exec and spawn", { timeout: 20_000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "programs-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const plain = join(folder, "plain");
  writeFileSync(plain, "#!/bin/sh\n", { mode: 0o600 });
  const { client } = await served(t, async (run) => {
    const [how, path = ""] = run.prompt.split(" ");
    return (how === "exec" ? await run.exec({ path }) : run.spawn({ path }).exit).result();
  });
  for (const how of ["exec", "spawn"]) {
    for (const path of ["no-such-program", join(folder, "absent")]) {
      const result = await client.execute(hello(`${how} ${path}`)).wait();
      assert.deepEqual(failureIn(result), ["NOT_INSTALLED", "command_not_found"]);
      assert.deepEqual([result.failure?.retryable, result.treeConfirmedDead], [false, undefined]);
    }
    const result = await client.execute(hello(`${how} ${plain}`)).wait();
    assert.deepEqual(failureIn(result), ["SPAWN_FAILED", "spawn_eacces"]);
  }
});

test("what the adapter starts by itself is not said to be gone", { timeout: 20_000 }, async (t) => {
  const { client } = await served(t, async (run) => {
    const own = spawn("/bin/true");
    await new Promise((resolve) => own.once("exit", resolve));
    return run.prompt === "hello" ? undefined : run.spawn({ path: "no-such-program" }).exit.result();
  });
  for (const prompt of ["hello", "missing"]) {
    const run = client.execute({ ...hello(prompt), runId: prompt });
    assert.equal((await run.wait()).treeConfirmedDead, undefined);
    assert.equal((await run.cancel()).treeConfirmedDead, undefined);
  }
});

test("limits hold for the second program of a run too", { timeout: 20_000 }, async (t) => {
  const { client } = await served(t, async (run) => {
    await run.exec({ path: "/bin/true" });
    return (await run.exec(living)).result();
  });
  const limits = { wall: { nanos: 500_000_000 }, grace: {} };
  const result = await client.execute({ ...hello(), limits }).wait();
  assert.deepEqual([result.outcome, failureIn(result)[0]], [Outcome.TIMED_OUT, "WALL_TIMEOUT"]);
});

test(
  "a promise that nothing awaits fails its run, is logged, and the adapter serves on",
  { timeout: 20_000 },
  async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "programs-"));
    const address = `unix:${join(folder, "a.sock")}`;
    const program = `
    import { serve } from "@dragoman/adapter";
    await serve({
      describe: { adapter: "tested", capabilities: { items: [{ feature: ${Feature.PROMPT} }] } },
      run: async (run) => {
        void Promise.reject(new Error("a bug near " + run.request.env["TOKEN"]));
        await run.spawn({ path: "/bin/sleep", args: ["60"] }).program.ended;
      },
    });`;
    const adapter = spawn(process.execPath, ["--input-type=module", "--eval", program], {
      stdio: ["ignore", "inherit", "pipe"],
      env: { ...process.env, DRAGOMAN_LISTEN: address },
    });
    const client = new Client(address);
    t.after(() => {
      client.close();
      adapter.kill("SIGKILL");
      rmSync(folder, { recursive: true });
    });
    const logged: string[] = [];
    const lines = createInterface({ input: adapter.stderr });
    await new Promise<void>((resolve) => {
      lines.on("line", (line) => {
        logged.push(line);
        if (line.includes("adapter ready")) resolve();
      });
    });
    for (const token of ["env-secret-1", "env-secret-2"]) {
      const run = client.execute({ ...hello(), env: { TOKEN: token } });
      assert.deepEqual(failureIn(await run.wait()), ["INTERNAL", "adapter_failed"]);
    }
    const bugs = logged.filter((line) => line.includes("the adapter failed"));
    assert.equal(bugs.length, 2);
    assert.match(bugs[0] ?? "", /a bug near \[redacted\]/);
    const ended = new Promise((resolve) => adapter.once("exit", resolve));
    adapter.kill("SIGTERM");
    assert.equal(await ended, 0);
  },
);
