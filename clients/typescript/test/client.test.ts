import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Client } from "../src/client.js";
import { DragomanError } from "../src/errors.js";
import type { Run } from "../src/run.js";
import { Outcome } from "../src/v1.js";
import { Fake, result, text, type FakeStream } from "./fake.js";

const RETRY = { retryAfterMs: 1 };

async function served(t: TestContext, options = {}): Promise<{ fake: Fake; client: Client }> {
  const fake = await new Fake(t).start();
  const client = new Client(fake.address, options);
  t.after(() => client.close());
  return { fake, client };
}

async function said(run: Run): Promise<string[]> {
  const parts: string[] = [];
  for await (const { body } of run) {
    if (body.case === "text") parts.push(String(body.value.content.value));
    else parts.push(`<${body.case}>`);
  }
  return parts;
}

const lost = (stream: FakeStream) => stream.fail(new DragomanError("DRAINING", "the server is shutting down", RETRY));

test("a run is an iterable of its events, and has a result", async (t) => {
  const { fake, client } = await served(t);
  fake.execute = [(_, stream) => stream.accept().send(text(1, "one"), text(2, "two"), result(3)).end()];
  const run = client.execute({ adapter: "echo", task: { case: "prompt", value: "hi" } });
  assert.deepEqual(await said(run), ["one", "two", "<result>"]);
  assert.equal(run.result?.outcome, Outcome.SUCCEEDED);
  assert.equal(run.lastSequence, 3n);
  const [request] = fake.requests;
  assert.match(run.id, /^run-[0-9a-f]{24}$/);
  assert.equal(request?.runId, run.id);
  assert.ok(request?.batching, "batches are requested");
  assert.ok(request && "orphanAfter" in request && request.orphanAfter?.seconds === 30n);
});

test("accepted() returns before the first event", async (t) => {
  const { fake, client } = await served(t);
  let finish = () => {};
  fake.execute = [
    (_, stream) => {
      stream.accept();
      finish = () => stream.send(result(1)).end();
    },
  ];
  const run = client.execute({ runId: "r1" });
  assert.equal(await run.accepted(), "r1");
  finish();
  assert.equal((await run.wait()).outcome, Outcome.SUCCEEDED);
});

test("a rejection has reason, metadata and violations", async (t) => {
  const { fake, client } = await served(t);
  const violations = [{ field: "config.colour", description: "is not known" }];
  fake.execute = [
    (_, stream) => stream.fail(new DragomanError("INVALID_REQUEST", "config.colour: is not known", { violations })),
  ];
  await assert.rejects(client.execute({}).wait(), (error) => {
    assert.ok(error instanceof DragomanError);
    assert.equal(error.reason, "INVALID_REQUEST");
    assert.deepEqual(error.violations, violations);
    assert.equal(error.retryable, false);
    return true;
  });
  await assert.rejects(client.describe("ehco"), { reason: "ADAPTER_NOT_FOUND", metadata: { did_you_mean: "echo" } });
  assert.equal((await client.describe()).adapter, "echo");
});

test("an error that a retry may mend is retryable", async (t) => {
  const { fake, client } = await served(t);
  fake.execute = [
    (_, stream) => stream.fail(new DragomanError("TOO_MANY_RUNS", "at the limit", { retryAfterMs: 1500 })),
  ];
  await assert.rejects(client.execute({}).wait(), { reason: "TOO_MANY_RUNS", retryAfterMs: 1500, retryable: true });
});

test("a broken stream is continued after its last event", async (t) => {
  const { fake, client } = await served(t);
  fake.execute = [(_, stream) => lost(stream.accept().send(text(1, "one"), text(2, "two")))];
  fake.attach = [
    (_, stream) => lost(stream.accept()),
    (_, stream) =>
      stream.send(text(2, "two"), { body: { case: "replayDone", value: {} } }, text(3, "three"), result(4)).end(),
  ];
  const run = client.execute({ runId: "r1", adapter: "echo" });
  assert.deepEqual(await said(run), ["one", "two", "three", "<result>"]);
  const [, , attach] = fake.requests;
  assert.ok(attach && "afterSequence" in attach);
  assert.deepEqual([attach.runId, attach.adapter, attach.afterSequence, attach.hold], ["r1", "echo", 2n, true]);
});

test("a run continues after the connection was lost and the server is there again", async (t) => {
  const { fake, client } = await served(t);
  const run = client.execute({ runId: "r1" });
  fake.execute = [
    (_, stream) => {
      stream.accept().send(text(1, "one"));
    },
  ];
  fake.attach = [(_, stream) => stream.send(text(2, "two"), result(3)).end()];
  const events = run[Symbol.asyncIterator]();
  assert.equal((await events.next()).value?.sequence, 1n);
  fake.stop();
  await fake.start();
  assert.equal((await events.next()).value?.sequence, 2n);
  assert.equal((await events.next()).value?.body.case, "result");
  assert.equal((await events.next()).done, true);
});

test("before the first event the same request is sent again", async (t) => {
  const { fake, client } = await served(t);
  await client.describe(); // the server is there
  fake.execute = [
    (_, stream) => stream.fail(new DragomanError(undefined, "reset", {}, 14)),
    (_, stream) => stream.accept().send(result(1)).end(),
  ];
  assert.equal((await client.execute({ runId: "r1" }).wait()).outcome, Outcome.SUCCEEDED);
  assert.deepEqual(
    fake.requests.map(({ $typeName }) => $typeName),
    ["dragoman.v1.ExecuteRequest", "dragoman.v1.ExecuteRequest"],
  );
});

test("reconnecting ends at its limit", async (t) => {
  const { fake, client } = await served(t, { reattachMs: 30 });
  fake.execute = [(_, stream) => lost(stream.accept().send(text(1, "one")))];
  fake.attach = Array.from({ length: 100 }, () => (_: unknown, stream: FakeStream) => lost(stream));
  await assert.rejects(client.execute({ runId: "r1" }).wait(), {
    reason: "DRAINING",
    message: /reconnecting failed for 30 ms/,
  });
});

test("the failure of a run is no failure of its stream", async (t) => {
  const { fake, client } = await served(t);
  fake.execute = [(_, stream) => lost(stream.accept().send(text(1, "one")))];
  await assert.rejects(client.execute({ runId: "r1" }).wait(), { reason: "RUN_NOT_FOUND" });
  assert.equal(fake.requests.length, 2);
});

test("batches are unrolled, and no event comes twice", async (t) => {
  const { fake, client } = await served(t);
  const batch = (...events: ReturnType<typeof text>[]) => ({
    sequence: events.at(-1)?.sequence,
    body: { case: "batch" as const, value: { events } },
  });
  fake.execute = [
    (_, stream) =>
      stream
        .accept()
        .send(text(1, "one"), batch(text(1, "one"), text(2, "two"), text(3, "three")), result(4))
        .end(),
  ];
  assert.deepEqual(await said(client.execute({})), ["one", "two", "three", "<result>"]);
});

test("a server that rejects batches is called without", async (t) => {
  const { fake, client } = await served(t);
  const violations = [{ field: "batching", description: "not supported" }];
  const reject = (_: unknown, stream: FakeStream) =>
    stream.fail(new DragomanError("NOT_SUPPORTED", "batching", { violations }));
  const accept = (_: unknown, stream: FakeStream) => stream.accept().send(result(1)).end();
  fake.execute = [reject, accept, accept];
  await client.execute({}).wait();
  await client.execute({}).wait();
  assert.deepEqual(
    fake.requests.map(({ batching }) => batching !== undefined),
    [true, false, false],
  );
});

test("a gap is handed on, and skipped when the stream is continued", async (t) => {
  const { fake, client } = await served(t);
  const gap = { body: { case: "gap" as const, value: { fromSequence: 2n, toSequence: 8n } } };
  fake.attach = [
    (_, stream) => lost(stream.send(text(1, "one"), gap)),
    (_, stream) => stream.send(text(9, "nine"), result(10)).end(),
  ];
  const run = client.attach({ runId: "r1" });
  assert.deepEqual(await said(run), ["one", "<gap>", "nine", "<result>"]);
  const [, again] = fake.requests;
  assert.ok(again && "afterSequence" in again && again.afterSequence === 8n);
});

test("cancel and respond name the run", async (t) => {
  const { fake, client } = await served(t);
  fake.execute = [(_, stream) => stream.accept().send(result(1)).end()];
  const run = client.execute({ runId: "r1", adapter: "echo" });
  assert.equal((await run.cancel({ graceMs: 1500, reason: "enough" })).outcome, Outcome.CANCELLED);
  assert.equal((await run.respond("q1", { optionIds: ["allow"] }, "a person")).sequence, 7n);
  const [cancel] = fake.cancels;
  assert.deepEqual(
    [cancel?.runId, cancel?.adapter, cancel?.reason, cancel?.grace?.seconds, cancel?.grace?.nanos],
    ["r1", "echo", "enough", 1n, 500_000_000],
  );
  assert.deepEqual([fake.responses[0]?.requestId, fake.responses[0]?.responder], ["q1", "a person"]);
  run.close();
});

test("a signal ends the stream, not the run", async (t) => {
  const { fake, client } = await served(t);
  fake.execute = [
    (_, stream) => {
      stream.accept().send(text(1, "one"));
    },
  ];
  const controller = new AbortController();
  const run = client.execute({ runId: "r1" }, { signal: controller.signal });
  await assert.rejects(
    async () => {
      for await (const event of run) if (event.sequence === 1n) controller.abort();
    },
    { code: 1 },
  );
  assert.equal(fake.cancels.length, 0);
});

test("a place with a space is named whole", async () => {
  const client = new Client("unix:/tmp/no dir/x.sock");
  await assert.rejects(client.describe(), { message: /^no server listens at \/tmp\/no dir\/x\.sock; / });
  client.close();
});

test("a call that no server answers fails at once", async (t) => {
  const client = new Client(new Fake(t).address);
  const place = client.address.slice("unix:".length);
  const message = `no server listens at ${place}; start a router with 'dragoman serve', or name another address`;
  await assert.rejects(client.describe(), { code: 14, retryable: true, message });
  await assert.rejects(client.execute({}).wait(), { code: 14, message });
  client.close();
});
