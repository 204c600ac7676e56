import assert from "node:assert/strict";
import { test } from "node:test";

import {
  AgentEventSchema,
  BatchSchema,
  create,
  ExecuteRequestSchema,
  FailureKind,
  fromBinary,
  InputResolution,
  InputSubjectSchema,
  OutputStream,
  PermissionDecision,
  PermissionsSchema,
  toBinary,
  ToolKind,
  ToolStatus,
  type AgentEvent,
  type InputRequest,
  type JsonObject,
  type MessageInitShape,
} from "@dragoman/client/v1";

import { batched } from "../src/batches.js";
import { checkBounds } from "../src/bounds.js";
import { Clocks } from "../src/clocks.js";
import { EventLog, Reader, SlowReader, type Entry } from "../src/eventlog.js";
import { cutText } from "../src/fields.js";
import { Inputs } from "../src/inputs.js";
import { Lines } from "../src/lines.js";
import { fitEvent, redactEvent } from "../src/outgoing.js";
import { decide } from "../src/permissions.js";
import { Redactor } from "../src/redact/redactor.js";
import { Schema } from "../src/schema.js";
import { drainGraceMs } from "../src/serve.js";
import { Texts } from "../src/texts.js";

const open = new AbortController().signal;

function textEvent(sequence: number, text = "x"): AgentEvent {
  const body = { case: "text" as const, value: { itemId: "a", content: { case: "delta" as const, value: text } } };
  return create(AgentEventSchema, { sequence: BigInt(sequence), runId: "r", body });
}

function filled(log: EventLog, count: number, size = 1): void {
  for (let i = 0; i < count; i++) {
    const event = textEvent(Number(log.last) + 1, "x".repeat(size));
    log.append(event, toBinary(AgentEventSchema, event));
  }
}

async function sequences(reader: Reader): Promise<bigint[]> {
  const all: bigint[] = [];
  for (let events = await reader.next(open); events.length > 0; events = await reader.next(open)) {
    all.push(...events.map(({ sequence }) => sequence));
  }
  return all;
}

test("a reader gets the events after its own, and the last one again", async () => {
  const log = new EventLog("r", 5n);
  filled(log, 3);
  log.close();
  assert.deepEqual(await sequences(new Reader(log, { after: 4n, holds: false, replayDone: false })), [5n, 6n, 7n]);
  assert.deepEqual(await sequences(new Reader(log, { after: 6n, holds: false, replayDone: false })), [7n]);
  assert.deepEqual(await sequences(new Reader(log, { after: 7n, holds: false, replayDone: false })), [7n]);
  assert.throws(() => new Reader(log, { after: 8n, holds: false, replayDone: false }), RangeError);
});

test("events that are no longer kept become a gap", async () => {
  const log = new EventLog("r", 1n);
  filled(log, 40, 1 << 19);
  const [first] = await new Reader(log, { after: 0n, holds: false, replayDone: false }).next(open);
  const { body } = fromBinary(AgentEventSchema, (first as Entry).bytes);
  assert.equal(body.case, "gap");
  assert.equal((body.value as { toSequence: bigint }).toSequence, (log.entries[0]?.sequence ?? 0n) - 1n);
});

test("a slow reader is dropped, and a holder makes the writer wait", async () => {
  const log = new EventLog("r", 1n);
  const slow = new Reader(log, { after: 0n, holds: false, replayDone: false });
  const holder = new Reader(log, { after: 0n, holds: true, replayDone: false });
  filled(log, 9, 1 << 19);
  assert.equal(log.isBehind, true);
  let isTaken = false;
  const taken = log.taken().then(() => {
    isTaken = true;
  });
  await Promise.resolve();
  assert.equal(isTaken, false);
  while (log.isBehind || !isTaken) await holder.next(open);
  await taken;
  filled(log, 9, 1 << 19);
  await assert.rejects(slow.next(open), SlowReader);
});

test("batches hold neighbours that may share one", () => {
  const entry = (sequence: number, kind: Entry["kind"] = "text"): Entry => ({
    sequence: BigInt(sequence),
    kind,
    bytes: toBinary(AgentEventSchema, textEvent(sequence)),
  });
  const messages = batched([
    entry(1, "started"),
    entry(2),
    entry(3),
    entry(0, "heartbeat"),
    entry(4),
    entry(5, "result"),
  ]).map((bytes) => fromBinary(AgentEventSchema, bytes));
  assert.deepEqual(
    messages.map(({ sequence, body }) => [sequence, body.case]),
    [
      [1n, "text"],
      [3n, "batch"],
      [0n, "text"],
      [4n, "text"],
      [5n, "text"],
    ],
  );
  const batch = create(BatchSchema, messages[1]?.body.value as MessageInitShape<typeof BatchSchema>);
  assert.deepEqual(
    batch.events.map(({ sequence }) => sequence),
    [2n, 3n],
  );
});

test("lines", () => {
  const lines = new Lines(OutputStream.STDOUT);
  assert.deepEqual(
    lines.feed(Buffer.from("one\r\ntw")).map(({ text }) => text),
    ["one"],
  );
  assert.deepEqual(
    lines.feed(Buffer.from("o\n\n")).map(({ text }) => text),
    ["two", ""],
  );
  const [broken] = lines.feed(Buffer.from([0x61, 0xe2, 0x82, 0x0a]));
  assert.deepEqual([broken?.text, broken?.raw], ["a\ufffd", Uint8Array.from([0x61, 0xe2, 0x82])]);
  lines.feed(Buffer.from("end"));
  const [last] = lines.end((text) => text);
  assert.deepEqual([last?.text, last?.isUnterminated], ["end", true]);
});

test("pieces of texts have offsets in bytes, of what is shown", () => {
  const texts = new Texts(new Redactor(["secret-value"]));
  const offsets = ["grüß ", "secret-", "value ", "end"]
    .flatMap((piece) => texts.take(textEvent(0, piece)))
    .map(({ body }) => [body.case === "text" && body.value.offset, body.case === "text" && body.value.content.value]);
  assert.deepEqual(offsets, [
    [0n, "grüß "],
    [7n, "[redacted] "],
    [18n, "end"],
  ]);
});

test("half a character is replaced, and put together where the other half follows", () => {
  const texts = new Texts(new Redactor([]));
  const [first = "", second = ""] = "🦀".split("");
  const shown = [`a${first}`, `${second}b`, `${second}c${first}`]
    .flatMap((piece) => texts.take(textEvent(0, piece)))
    .concat(texts.flush())
    .map(({ body }) => body.case === "text" && body.value.content.value);
  assert.deepEqual(shown, ["a", "🦀b", "\ufffdc", "\ufffd"]);
  const body = { case: "toolResult" as const, value: { toolCallId: `1${first}`, content: `${first}!` } };
  const event = create(AgentEventSchema, { body });
  redactEvent(event, new Redactor([]));
  const found = fromBinary(AgentEventSchema, fitEvent(event, 0).bytes).body.value as typeof body.value;
  assert.deepEqual([found.toolCallId, found.content, event.redacted], ["1\ufffd", "\ufffd!", false]);
});

test("half a character in a question is replaced, and the question of its asker kept", async () => {
  const written: AgentEvent[] = [];
  const write = (event: AgentEvent) => {
    toBinary(AgentEventSchema, event);
    written.push(event);
    return event;
  };
  const inputs = new Inputs({ isOver: false, write, waits: () => {} }, undefined);
  const subject = create(InputSubjectSchema, { paths: ["a\ud83d"], toolCallId: "1\ud83d" });
  const end = inputs.ask({ title: "t\ud83d", subject, options: [{ id: "o\ud83d" }] });
  inputs.dropAll();
  assert.equal((await end).how, InputResolution.DROPPED);
  const { title, subject: shown, options, defaultAnswer } = written[0]?.body.value as InputRequest;
  assert.deepEqual(
    [title, shown?.paths, shown?.toolCallId, options.map(({ id }) => id)],
    ["t\ufffd", ["a\ufffd"], "1\ufffd", ["o\ufffd"]],
  );
  assert.deepEqual([defaultAnswer?.optionIds, subject.paths], [[], ["a\ud83d"]]);
});

test("an event has at most 1 MiB, and says what was cut", () => {
  const event = create(AgentEventSchema, {
    body: { case: "toolResult", value: { toolCallId: "1", content: "é".repeat(1 << 20) } },
  });
  const cut = redactEvent(event, new Redactor([]));
  const { bytes } = fitEvent(event, cut);
  assert.ok(bytes.length <= 1 << 20);
  const value = event.body.value as { content: string; truncatedBytes: bigint };
  assert.equal(value.truncatedBytes, BigInt((2 << 20) - Buffer.byteLength(value.content)));
});

test("secrets are taken out of every text but IDs and session handles", () => {
  const handle = { nativeId: "id-secret-1", params: { token: "id-secret-1" } };
  const event = create(AgentEventSchema, {
    body: {
      case: "result",
      value: { summary: "id-secret-1", session: { handle }, failure: { detail: { a: ["id-secret-1"] } } },
    },
  });
  redactEvent(event, new Redactor(["id-secret-1"]));
  const result = event.body.value as {
    summary: string;
    session: { handle: { params: JsonObject } };
    failure: { detail: JsonObject };
  };
  assert.equal(event.redacted, true);
  assert.equal(result.summary, "[redacted]");
  assert.deepEqual(result.failure.detail, { a: ["[redacted]"] });
  assert.deepEqual(result.session.handle.params, { token: "id-secret-1" });
});

test("text is cut between characters", () => {
  assert.equal(cutText("aé€🦀", 2), "a");
  assert.equal(cutText("aé€🦀", 6), "aé€");
  assert.equal(cutText("aé€🦀", 10), "aé€🦀");
});

test("clocks", () => {
  const clocks = new Clocks({ startUp: 50, idle: 100, wall: 1000, toolCall: 200 }, 0);
  assert.equal(clocks.next()?.kind, FailureKind.WALL_TIMEOUT);
  clocks.start(10);
  assert.deepEqual([clocks.next()?.kind, clocks.next()?.at], [FailureKind.START_TIMEOUT, 60]);
  clocks.active(20);
  assert.deepEqual([clocks.next()?.kind, clocks.next()?.at], [FailureKind.IDLE_TIMEOUT, 120]);
  const call = { id: "1", status: ToolStatus.RUNNING, kind: ToolKind.EXECUTE };
  clocks.observe(create(AgentEventSchema, { body: { case: "toolCall", value: call } }), 30);
  assert.deepEqual([clocks.next()?.kind, clocks.next()?.at], [FailureKind.TOOL_TIMEOUT, 230]);
  clocks.wait(40);
  assert.equal(clocks.next()?.kind, FailureKind.WALL_TIMEOUT);
  clocks.resume(140);
  assert.equal(clocks.next()?.at, 330);
  clocks.observe(create(AgentEventSchema, { body: { case: "toolResult", value: { toolCallId: "1" } } }), 150);
  assert.deepEqual([clocks.next()?.kind, clocks.next()?.at], [FailureKind.IDLE_TIMEOUT, 250]);
  clocks.areOff = true;
  assert.equal(clocks.next(), undefined);
});

test("permissions: the first rule that matches decides", () => {
  const permissions = create(PermissionsSchema, {
    interactive: true,
    rules: [
      { decision: PermissionDecision.DENY, pathGlob: "*.env" },
      { decision: PermissionDecision.ALLOW, toolKind: ToolKind.EDIT, pathGlob: "/project/*" },
      { decision: PermissionDecision.ALLOW, commandPrefix: "git status" },
    ],
  });
  const decided = (subject: MessageInitShape<typeof InputSubjectSchema>, cwd = "/project") =>
    decide(permissions, create(InputSubjectSchema, subject), cwd);
  assert.equal(decided({ toolKind: ToolKind.EDIT, paths: ["a.txt"] }), "allow");
  assert.equal(decided({ toolKind: ToolKind.EDIT, paths: ["a.txt", "/etc/passwd"] }), "ask");
  assert.equal(decided({ toolKind: ToolKind.EDIT, paths: ["/project/../etc/passwd"] }), "ask");
  assert.equal(decided({ toolKind: ToolKind.EDIT, paths: ["a.txt", "secrets.env"] }), "deny");
  assert.equal(decided({ command: "git status -s" }), "allow");
  for (const command of ["git statusx", "git status; rm -rf ~", "git status $(x)", "git 'status'"])
    assert.equal(decided({ command }), "ask", command);
  permissions.interactive = false;
  assert.equal(decided({ command: "ls" }), "deny");
  permissions.autoApprove = true;
  assert.equal(decided({ command: "ls" }), "allow");
  assert.equal(decide(undefined, create(InputSubjectSchema), "/"), "deny");
});

test("bounds", () => {
  const check = (request: MessageInitShape<typeof ExecuteRequestSchema>, size = 1) =>
    checkBounds(ExecuteRequestSchema, create(ExecuteRequestSchema, request), size);
  const field = (name: string) => ({ reason: "INVALID_REQUEST", violations: [{ field: name, description: /./ }] });
  const wrong = (name: string) => (error: { reason: string; violations: { field: string }[] }) => {
    assert.equal(error.reason, field(name).reason);
    assert.equal(error.violations[0]?.field, name);
    return true;
  };
  check({ task: { case: "prompt", value: "x".repeat(1 << 20) }, env: { A: "x".repeat(100_000) } });
  assert.throws(() => check({}, (16 << 20) + 1), { reason: "MESSAGE_TOO_LARGE" });
  assert.throws(() => check({ env: { A: "x".repeat(200_000) } }), wrong("env.A"));
  assert.throws(() => check({ runId: "x".repeat(300) }), wrong("run_id"));
  assert.throws(() => check({ limits: { wall: { seconds: -1n } } }), wrong("limits.wall"));
  assert.throws(
    () => check({ labels: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`l${i}`, ""])) }),
    wrong("labels"),
  );
  let deep: JsonObject = {};
  for (let i = 0; i < 40; i++) deep = { d: deep };
  assert.throws(() => check({ config: deep }), { reason: "INVALID_REQUEST", message: /32 levels/ });
  assert.throws(() => check({ config: { list: Array.from({ length: 2001 }, () => 1) } }), {
    reason: "INVALID_REQUEST",
  });
});

test("settings are checked by their schema", () => {
  const schema = new Schema(
    JSON.stringify({
      $schema: "http://json-schema.org/draft-07/schema#",
      type: "object",
      required: ["command"],
      additionalProperties: false,
      properties: {
        command: { type: "string" },
        mode: { enum: ["a", "b"] },
        args: { type: "array", items: { type: "string" } },
      },
    }),
  );
  assert.deepEqual(schema.check({ command: "x", args: ["y"] }), []);
  assert.deepEqual(
    schema.check({ colour: 1, mode: "c", args: [1] }).map(({ field }) => field),
    ["config.args[0]", "config.colour", "config.command", "config.mode"],
  );
  assert.throws(() => new Schema("{"));
});

test("a drain grace is a number of seconds", () => {
  for (const [text, ms] of [
    [undefined, 0],
    ["", 0],
    [" 2.5 ", 2500],
    ["300", 300_000],
    ["1e9", undefined],
    ["99999999999", 2 ** 31 - 1],
    ["5m", undefined],
    ["-1", undefined],
    [".", undefined],
  ] as const) {
    if (ms === undefined) assert.throws(() => drainGraceMs(text), /no number of seconds/);
    else assert.equal(drainGraceMs(text), ms);
  }
});
