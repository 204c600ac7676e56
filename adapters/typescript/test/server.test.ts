import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";

import { Failure, Server } from "@dragoman/adapter";
import {
  FailureKind,
  Feature,
  InputResolution,
  Outcome,
  SessionChange,
  SessionDisposition,
  Severity,
  type AgentEvent,
} from "@dragoman/client/v1";

import { eventsOf, forever, hello, served, type Request } from "./served.js";

test("a run has its events in order, and a result", async (t) => {
  const { client } = await served(t, async (run) => {
    await run.text("a", "one ");
    await run.text("a", run.prompt);
  });
  const events = await eventsOf(client.execute({ ...hello(), labels: { team: "a" } }));
  assert.deepEqual(
    events.map(({ body }) => body.case),
    ["started", "state", "text", "text", "result"],
  );
  assert.deepEqual(
    events.map(({ sequence }) => sequence),
    [1n, 2n, 3n, 4n, 5n],
  );
  const [started] = events;
  assert.deepEqual(started?.body.case === "started" && started.body.value.labels, { team: "a" });
});

test("a notice that comes before the attempt opens is kept until it does", async (t) => {
  const { client } = await served(t, async (run) => {
    run.notice(Severity.WARNING, "early", "Of the adapter itself.");
    if (run.prompt === "fail") throw new Failure(FailureKind.NOT_INSTALLED, "", "It is not there.");
    run.start({ notes: ["a note"] });
    run.notice(Severity.INFO, "late", "After the start.");
  });
  const shown = async (prompt: string) =>
    (await eventsOf(client.execute(hello(prompt)))).map(({ body }) =>
      body.case === "notice" ? body.value.code : body.case,
    );
  assert.deepEqual(await shown("hello"), ["started", "state", "early", "late", "result"]);
  assert.deepEqual(await shown("fail"), ["started", "state", "early", "result"]);
});

test("a call that is not served is refused with a reason", async (t) => {
  const { client } = await served(t, async () => {});
  for (const call of [() => client.adapter.syncSkills({}), () => client.adapter.getChanges({})]) {
    await assert.rejects(call(), { reason: "NOT_IMPLEMENTED" });
  }
});

test("the same request joins, another is refused", async (t) => {
  let runs = 0;
  const { client } = await served(t, async (run) => {
    runs += 1;
    await run.text("a", "x");
  });
  const first = await eventsOf(client.execute({ ...hello(), runId: "r1", env: { A: "1", B: "2" } }));
  const second = await eventsOf(client.execute({ ...hello(), runId: "r1", env: { B: "2", A: "1" } }));
  assert.deepEqual(second, first);
  assert.equal(runs, 1);
  await assert.rejects(client.execute({ ...hello("other"), runId: "r1" }).wait(), { reason: "RUN_ID_REUSED" });
});

test("a failure has its kind; a fault of the adapter is hidden, and logged", async (t) => {
  const { client, logged } = await served(t, async (run) => {
    if (run.prompt === "fail") throw new Failure(FailureKind.RATE_LIMITED, "too_many", "Wait a minute.");
    throw new Error(`a bug near ${run.request.env["TOKEN"]}`);
  });
  const failed = (await client.execute(hello("fail")).wait()).failure;
  assert.deepEqual([failed?.kind, failed?.code, failed?.retryable], [FailureKind.RATE_LIMITED, "too_many", true]);
  const bug = (await client.execute({ ...hello(), env: { TOKEN: "env-secret-1" } }).wait()).failure;
  assert.equal(bug?.kind, FailureKind.INTERNAL);
  assert.ok(!JSON.stringify(bug?.message).includes("bug"));
  const line = logged.find((text) => text.includes("the adapter failed"));
  assert.match(line ?? "", /a bug near \[redacted\]/);
});

test("cancel ends a run, also one whose adapter does not stop", async (t) => {
  const { client } = await served(t, async (run) => {
    await run.text("a", "x");
    await (run.prompt === "deaf" ? delay(60_000, undefined, { ref: false }) : forever(run));
  });
  for (const prompt of ["hello", "deaf"]) {
    const run = client.execute(hello(prompt));
    await run.accepted();
    assert.equal((await run.cancel({ graceMs: 0 })).outcome, Outcome.CANCELLED, prompt);
    assert.equal((await run.wait()).outcome, Outcome.CANCELLED, prompt);
    assert.equal((await run.cancel()).outcome, Outcome.CANCELLED, prompt);
  }
});

test("limits end a run", async (t) => {
  const { client } = await served(t, async (run) => {
    await run.text("a", "123456789");
    await forever(run);
  });
  const limits = { wall: { nanos: 100_000_000 }, grace: {}, outputBytes: 4n };
  const run = client.execute({ ...hello(), limits });
  const events = await eventsOf(run);
  assert.equal(run.result?.outcome, Outcome.TIMED_OUT);
  assert.equal(run.result?.failure?.kind, FailureKind.WALL_TIMEOUT);
  assert.equal(run.result?.counters?.droppedBytes, 5n);
  assert.deepEqual(
    events.flatMap(({ body }) => (body.case === "text" ? [body.value.content.value] : [])),
    ["1234"],
  );
});

test("a run that no client holds is cancelled", async (t) => {
  const { client } = await served(t, forever);
  const run = client.execute({ ...hello(), runId: "r1", orphanAfter: {} });
  await run.accepted();
  run.close();
  assert.equal((await client.attach({ runId: "r1" }).wait()).outcome, Outcome.CANCELLED);
});

test("a permission is asked for, answered once, and repeated to a late reader", async (t) => {
  const { client } = await served(t, async (run) => {
    const { isAllowed, message } = await run.permit({ toolName: "Bash", command: "ls" });
    await run.text("a", `${isAllowed} ${message}`);
  });
  const run = client.execute({ ...hello(), runId: "r1", permissions: { interactive: true } });
  let id = "";
  const events: AgentEvent[] = [];
  for await (const event of run) {
    events.push(event);
    if (event.body.case !== "inputRequest") continue;
    id = event.body.value.id;
    const late = client.attach({ runId: "r1", afterSequence: event.sequence });
    for await (const copy of late) {
      if (copy.body.case === "inputRequest") assert.equal(copy.sequence, 0n);
      if (copy.body.case === "inputRequest") break;
    }
    await assert.rejects(run.respond(id, { optionIds: ["maybe"] }), { reason: "INVALID_ANSWER" });
    const { sequence } = await run.respond(id, { optionIds: ["allow"], message: "go on" });
    assert.equal((await run.respond(id, { optionIds: ["allow"], message: "go on" })).sequence, sequence);
    await assert.rejects(run.respond(id, { optionIds: ["reject"] }), { reason: "ALREADY_RESOLVED" });
  }
  assert.ok(events.some(({ body }) => body.case === "text" && body.value.content.value === "true go on"));
  await assert.rejects(run.respond("other", { optionIds: ["allow"] }), { reason: "REQUEST_NOT_FOUND" });
});

test("a question is dropped when its run is to stop; an answer must not have the mask of a secret", async (t) => {
  const { client } = await served(t, async (run) => {
    const subject = { toolName: "Bash" };
    const { isAllowed } = await run.permit(subject, { editableInputJson: `{"token": "${run.request.env["TOKEN"]}"}` });
    await run.text("a", `${isAllowed}`);
  });
  const env = { TOKEN: "env-secret-0815" };
  const run = client.execute({ ...hello(), env, permissions: { interactive: true } });
  for await (const { body } of run) {
    if (body.case === "inputResolved") assert.equal(body.value.resolution, InputResolution.DROPPED);
    if (body.case !== "inputRequest") continue;
    const { id, editableInputJson: updatedInputJson } = body.value;
    assert.equal(updatedInputJson, '{"token": "[redacted]"}');
    await assert.rejects(run.respond(id, { optionIds: ["allow"], updatedInputJson }), { reason: "INVALID_ANSWER" });
    await run.cancel({ graceMs: 20_000 });
  }
  assert.equal(run.result?.outcome, Outcome.CANCELLED);
});

test("a question expires to its default, and is dropped with its run", async (t) => {
  const { client } = await served(t, async (run) => {
    const { how } = await run.ask({ title: "Which?", options: [{ id: "a" }, { id: "b" }] });
    await run.text("a", InputResolution[how]);
  });
  const permissions = { interactive: true, requestTimeout: { nanos: 50_000_000 } };
  const events = await eventsOf(client.execute({ ...hello(), permissions }));
  assert.ok(events.some(({ body }) => body.case === "text" && body.value.content.value === "EXPIRED"));
  const run = client.execute({ ...hello(), permissions: { interactive: true } });
  for await (const { body } of run) {
    if (body.case !== "inputRequest") continue;
    await run.cancel({ graceMs: 0 });
    await assert.rejects(run.respond(body.value.id, { optionIds: ["a"] }), { reason: "RUN_FINISHED" });
  }
});

test("what is not declared is refused", async (t) => {
  const { client } = await served(t, async () => {});
  const refused: [string, Request][] = [
    ["model", { model: "large" }],
    ["prompt_template", { task: { case: "promptTemplate", value: "x" } }],
    ["session.key", { session: { selector: { case: "key", value: {} } } }],
    ["fallback", { fallback: {} }],
    ["limits.budget", { limits: { budget: {} } }],
    ["attachments", { attachments: [{}] }],
    ["skills", { skills: [{ name: "x" }] }],
  ];
  for (const [field, request] of refused) {
    await assert.rejects(
      client.execute({ ...hello(), ...request }).wait(),
      (error: { reason: string; violations: { field: string }[] }) => {
        assert.deepEqual([error.reason, error.violations[0]?.field], ["NOT_SUPPORTED", field]);
        return true;
      },
    );
  }
  await assert.rejects(client.execute({ requiredCapabilities: [Feature.FORK] }).wait(), {
    reason: "CAPABILITY_MISSING",
    metadata: { missing: "FEATURE_FORK" },
  });
});

test("a session is resumed in its adapter and directory alone", async (t) => {
  const { client } = await served(
    t,
    async (run) => ({
      outcome: Outcome.SUCCEEDED,
      summary: run.session.nativeId,
      session: { change: SessionChange.SET, handle: { nativeId: "s2" } },
    }),
    Feature.RESUME,
    Feature.WORKSPACE,
  );
  const resume = async (handle: object): Promise<[SessionDisposition, string]> => {
    const workspace = { cwd: tmpdir() };
    const run = client.execute({ ...hello(), workspace, session: { selector: { case: "handle", value: handle } } });
    const [started] = await eventsOf(run);
    assert.deepEqual([run.result?.session?.handle?.adapter, run.result?.session?.handle?.cwd], ["tested", tmpdir()]);
    return [started?.body.case === "started" ? started.body.value.sessionDisposition : 0, run.result?.summary ?? ""];
  };
  assert.deepEqual(await resume({ adapter: "tested", nativeId: "s1", cwd: tmpdir() }), [
    SessionDisposition.RESUME,
    "s1",
  ]);
  assert.deepEqual(await resume({ params: { sessionId: "s1" } }), [SessionDisposition.RESUME, "s1"]);
  assert.deepEqual(await resume({ adapter: "other", nativeId: "s1" }), [SessionDisposition.RESUME_REFUSED, ""]);
  assert.deepEqual(await resume({ adapter: "tested", nativeId: "s1", cwd: "/" }), [
    SessionDisposition.RESUME_REFUSED,
    "",
  ]);
});

test("a session has one run at a time; a copy of it is free", async (t) => {
  const { client } = await served(
    t,
    (run) => (run.prompt === "wait" ? forever(run) : run.text("a", run.session.nativeId)),
    Feature.RESUME,
    Feature.FORK,
  );
  const session = { selector: { case: "handle" as const, value: { nativeId: "s1" } } };
  const first = client.execute({ ...hello("wait"), runId: "r1", session });
  await first.accepted();
  await assert.rejects(client.execute({ ...hello(), session }).wait(), {
    reason: "SESSION_BUSY",
    metadata: { run_id: "r1" },
  });
  const copy = await client.execute({ ...hello(), session: { ...session, fork: true } }).wait();
  assert.equal(copy.outcome, Outcome.SUCCEEDED);
  await first.cancel({ graceMs: 0 });
  assert.equal((await client.execute({ ...hello(), session }).wait()).outcome, Outcome.SUCCEEDED);
});

test("a session that is gone is forgotten, and a fresh one says why", async (t) => {
  const gone = new Failure(FailureKind.SESSION_LOST, "gone", "The agent does not know the session.");
  const { client } = await served(t, async () => Promise.reject(gone), Feature.RESUME);
  const result = await client.execute(hello()).wait();
  assert.equal(result.session?.change, SessionChange.CLEAR);
  const [started] = await eventsOf(
    client.execute({ ...hello(), session: { selector: { case: "fresh", value: true }, reason: "too long" } }),
  );
  assert.ok(started?.body.case === "started");
  assert.deepEqual(
    [started.body.value.sessionDisposition, started.body.value.sessionReason],
    [SessionDisposition.RESUME_REFUSED, "too long"],
  );
});

test("skills are laid out as files, and none leads elsewhere", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "skills-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const own = join(folder, "own");
  mkdirSync(own);
  writeFileSync(join(own, "SKILL.md"), "# Own\n");
  const { client } = await served(
    t,
    async (run) => {
      const root = run.placeSkills(".agent/skills/{name}");
      const shown = ["own/SKILL.md", "sent/SKILL.md", "sent/scripts/go.sh"].map((path) => {
        const place = join(root, ".agent/skills", path);
        return `${readFileSync(place, "utf8").trim()} ${(statSync(place).mode & 0o100) !== 0}`;
      });
      await run.text("a", shown.join("; "));
    },
    Feature.SKILLS,
  );
  const files = (content: Record<string, string>) => ({
    case: "files" as const,
    value: { content: Object.fromEntries(Object.entries(content).map(([path, text]) => [path, Buffer.from(text)])) },
  });
  const sent = { name: "sent", source: files({ "SKILL.md": "# Sent", "scripts/go.sh": "#!/bin/sh" }) };
  const inPlace = (name: string, directory: string) => ({
    name,
    source: { case: "directory" as const, value: directory },
  });
  const events = await eventsOf(client.execute({ ...hello(), skills: [inPlace("own", own), sent] }));
  assert.ok(
    events.some(
      ({ body }) => body.case === "text" && body.value.content.value === "# Own false; # Sent false; #!/bin/sh true",
    ),
  );
  symlinkSync("/etc", join(own, "away"));
  const wrong: [Request["skills"] & object, string][] = [
    [[inPlace("own", own)], "skills[0]"],
    [[inPlace("own", "relative")], "skills[0]"],
    [[inPlace("own", join(folder, "absent"))], "skills[0]"],
    [[{ name: "../up", source: sent.source }], "skills[0]"],
    [[sent, { ...sent, name: "SENT" }], "skills[1].name"],
    [[{ name: "a", source: files({ "SKILL.md": "", "../b": "" }) }], "skills[0]"],
    [[{ name: "a", source: files({ "README.md": "" }) }], "skills[0]"],
    [[{ name: "a" }], "skills[0]"],
  ];
  for (const [skills, field] of wrong) {
    await assert.rejects(
      client.execute({ ...hello(), skills }).wait(),
      (error: { reason: string; violations: { field: string }[] }) => {
        assert.deepEqual([error.reason, error.violations[0]?.field], ["INVALID_REQUEST", field]);
        return true;
      },
    );
  }
});

test("a server that stops ends its runs with their results, and takes no new ones", async (t) => {
  const { server, client } = await served(t, forever);
  const run = client.execute(hello());
  await run.accepted();
  const ended = run.wait();
  const stopped = server.stop(0);
  await assert.rejects(
    client.execute(hello()).accepted(),
    (error: { reason?: string; code: number }) => error.reason === "DRAINING" || error.code === 14,
  );
  assert.equal((await ended).outcome, Outcome.CANCELLED);
  await stopped;
});

test("a second server on the same socket is refused", async (t) => {
  const { client, server } = await served(t, async () => {});
  const second = new Server({ describe: { adapter: "tested" }, run: async () => {} }, () => {});
  await assert.rejects(second.listen(client.address), /another server listens/);
  assert.equal((await client.describe()).instanceId, server.described.instanceId);
});
