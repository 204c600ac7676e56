// A contract that has grown: what a later revision adds passes through this client unharmed, both ways.
import assert from "node:assert/strict";
import { test } from "node:test";

import { create, type Message } from "@bufbuild/protobuf";

import { Client } from "../src/client.js";
import { AgentEventSchema, ExecuteRequestSchema, Outcome, type AgentEvent, type RunPhase } from "../src/v1.js";
import { Fake, result, text } from "./fake.js";

const LATER_FIELD = 9001;
const LATER_BODY = 61;
const LATER_VALUE = 9002;
/** A text in its wire format: its length, and its bytes. */
const DATA = Uint8Array.of(5, ...Buffer.from("later"));

function grown<M extends Message>(message: M, no = LATER_FIELD): M {
  message.$unknown = [{ no, wireType: 2, data: DATA }];
  return message;
}

function unknownOf(message: Message | undefined): [number, string][] {
  return (message?.$unknown ?? []).map(({ no, data }) => [no, Buffer.from(data.subarray(1)).toString()]);
}

function words(sequence: number): AgentEvent {
  const event = grown(create(AgentEventSchema, text(sequence, "hello")));
  grown(event.body.value as Message);
  return event;
}

test("what a later revision adds passes through the client", async (t) => {
  const fake = await new Fake(t).start();
  const client = new Client(fake.address);
  t.after(() => client.close());
  const another = grown(create(AgentEventSchema, { sequence: 2n }), LATER_BODY);
  const phase = create(AgentEventSchema, {
    sequence: 3n,
    body: { case: "state", value: { phase: LATER_VALUE as RunPhase } },
  });
  const batch = create(AgentEventSchema, {
    sequence: 5n,
    body: { case: "batch", value: { events: [words(4), words(5)] } },
  });
  const end = grown(create(AgentEventSchema, result(6)));
  fake.execute = [(_, stream) => stream.accept().sendAsIs(words(1), another, phase, batch, end).end()];

  const run = client.execute(grown(create(ExecuteRequestSchema, { adapter: "echo" })));
  const events: AgentEvent[] = [];
  for await (const event of run) events.push(event);

  assert.deepEqual(unknownOf(fake.requests[0]), [[LATER_FIELD, "later"]], "the field of the request");
  assert.deepEqual(
    events.map((event) => [event.sequence, event.body.case, unknownOf(event)]),
    [
      [1n, "text", [[LATER_FIELD, "later"]]],
      [2n, undefined, [[LATER_BODY, "later"]]],
      [3n, "state", []],
      [4n, "text", [[LATER_FIELD, "later"]]],
      [5n, "text", [[LATER_FIELD, "later"]]],
      [6n, "result", [[LATER_FIELD, "later"]]],
    ],
  );
  assert.deepEqual(unknownOf(events[3]?.body.value as Message), [[LATER_FIELD, "later"]], "in a body, in a batch");
  assert.ok(events[2]?.body.case === "state" && Number(events[2].body.value.phase) === LATER_VALUE);
  assert.equal(run.result?.outcome, Outcome.SUCCEEDED);
});
