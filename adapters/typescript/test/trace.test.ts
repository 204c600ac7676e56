import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

import type { Run } from "@dragoman/adapter";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  AgentEventSchema,
  ExecuteRequestSchema,
  FailureKind,
  OutputStream,
  Outcome,
  ToolStatus,
  type AgentEvent,
} from "@dragoman/client/v1";
import { Client, Metadata, credentials } from "@grpc/grpc-js";
import * as api from "@opentelemetry/api";
import {
  ROOT_CONTEXT,
  createTraceState,
  trace,
  type Attributes,
  type Context,
  type Span,
  type SpanOptions,
  type SpanStatus,
} from "@opentelemetry/api";

import type { Otel } from "../src/spans.js";
import { served } from "./served.js";

api satisfies Otel<Context>;

const TRACE_ID = "0af7651916cd43dd8448eb211c80319c";
const SPAN_ID = "b7ad6b7169203331";
const PARENT = `00-${TRACE_ID}-${SPAN_ID}-01`;
const CONTENT = "q4Lm-content-Tz93";

const showTrace = (run: Run) =>
  run.exec({ path: "sh", args: ["-c", 'echo "trace=$TRACEPARENT state=$TRACESTATE"'] }).then((exit) => exit.result());

/** Runs a request that belongs to a trace. */
async function events(address: string, sent: Record<string, string>): Promise<AgentEvent[]> {
  const client = new Client(address, credentials.createInsecure());
  const metadata = new Metadata();
  for (const [key, value] of Object.entries(sent)) metadata.set(key, value);
  const request = create(ExecuteRequestSchema, { task: { case: "prompt", value: CONTENT } });
  const call = client.makeServerStreamRequest(
    "/dragoman.v1.AdapterService/Execute",
    (message: typeof request) => Buffer.from(toBinary(ExecuteRequestSchema, message)),
    (data) => fromBinary(AgentEventSchema, data),
    request,
    metadata,
  );
  const all: AgentEvent[] = [];
  for await (const event of call) all.push(event as AgentEvent);
  client.close();
  return all;
}

const logged = (all: AgentEvent[]) =>
  all.flatMap(({ body }) =>
    body.case === "log" && body.value.stream === OutputStream.STDOUT ? [body.value.text] : [],
  );

test("a trace reaches the agent and the log", { timeout: 60_000 }, async (t) => {
  const before = process.env["TRACEPARENT"];
  process.env["TRACEPARENT"] = "00-11111111111111111111111111111111-2222222222222222-01"; // of the adapter, not of the run
  t.after(() => {
    if (before === undefined) delete process.env["TRACEPARENT"];
    else process.env["TRACEPARENT"] = before;
  });
  const { address, logged: lines } = await served(t, showTrace);
  const cases: [sent: Record<string, string>, parent: string, state: string][] = [
    [{}, "", ""],
    [{ traceparent: PARENT, tracestate: "vendor=1" }, PARENT, "vendor=1"],
    [{ traceparent: `01${PARENT.slice(2)}` }, `01${PARENT.slice(2)}`, ""],
    [{ traceparent: PARENT, tracestate: "a".repeat(513) }, PARENT, ""],
    [{ tracestate: "vendor=1" }, "", ""],
    [{ traceparent: "nonsense", tracestate: "vendor=1" }, "", ""],
    [{ traceparent: `ff${PARENT.slice(2)}` }, "", ""],
    [{ traceparent: `00-${"0".repeat(32)}-${SPAN_ID}-01` }, "", ""],
    [{ traceparent: `00-${TRACE_ID}-${"0".repeat(16)}-01` }, "", ""],
    [{ traceparent: PARENT.toUpperCase() }, "", ""],
    [{ traceparent: `${PARENT}-more` }, "", ""],
  ];
  for (const [sent, parent, state] of cases) {
    const all = await events(address, sent);
    assert.deepEqual(logged(all), [`trace=${parent} state=${state}`], JSON.stringify(sent));
    const own = lines.filter((line) => line.includes(all[0]?.runId ?? "?"));
    assert.ok(own.length > 0);
    for (const line of own) {
      assert.equal(line.includes(`"trace_id":"${TRACE_ID}","span_id":"${SPAN_ID}"`), parent !== "", line);
    }
  }
});

/** Hands over spans when they end. */
class Recorder {
  readonly ended: Recorded[] = [];

  getTracer() {
    return {
      startSpan: (name: string, options?: SpanOptions, context?: Context) =>
        new Recorded(this, name, options?.attributes, context),
      startActiveSpan: () => assert.fail(),
    };
  }
}

class Recorded implements Span {
  readonly attributes: Attributes;
  readonly parent: string | undefined;
  status: SpanStatus | undefined;

  constructor(
    readonly recorder: Recorder,
    readonly name: string,
    attributes: Attributes = {},
    context = ROOT_CONTEXT,
  ) {
    this.attributes = { ...attributes };
    this.parent = trace.getSpanContext(context)?.spanId;
  }

  spanContext() {
    const spanId = this.name.length.toString(16).padStart(16, "0");
    return { traceId: TRACE_ID, spanId, traceFlags: 1, traceState: createTraceState("vendor=1") };
  }

  setAttribute(key: string, value: string | number) {
    this.attributes[key] = value;
    return this;
  }

  setStatus(status: SpanStatus) {
    this.status = status;
    return this;
  }

  end() {
    this.recorder.ended.push(this);
  }

  isRecording() {
    return true;
  }

  setAttributes = () => assert.fail();
  addEvent = () => assert.fail();
  addLink = () => assert.fail();
  addLinks = () => assert.fail();
  updateName = () => assert.fail();
  recordException = () => assert.fail();
}

test("a run and its tool calls are spans without content", { timeout: 60_000 }, async (t) => {
  const recorder = new Recorder();
  trace.setGlobalTracerProvider(recorder);
  t.after(() => trace.disable());
  const { address } = await served(t, async (run) => {
    await showTrace(run);
    const call = { id: "1", name: "Bash", inputJson: CONTENT, title: CONTENT };
    await run.emit({ case: "toolCall", value: call });
    await run.emit({ case: "toolCall", value: call }); // again, as when its input grows
    await run.emit({ case: "toolResult", value: { toolCallId: "1", status: ToolStatus.FAILED } });
    await run.emit({ case: "toolCall", value: { id: "2", name: "Read" } });
    const usage = { tokens: { input: 7n, output: 0n } };
    const failure = { kind: FailureKind.MODEL_REFUSED, message: CONTENT };
    return { outcome: Outcome.FAILED, model: "m", summary: CONTENT, usage, failure };
  });
  const all = await events(address, { traceparent: PARENT, tracestate: "vendor=1" });
  assert.deepEqual(logged(all), [`trace=00-${TRACE_ID}-0000000000000013-01 state=vendor=1`]);
  assert.deepEqual(
    recorder.ended.map(({ name, parent, status, attributes }) => ({
      name,
      parent,
      failed: status?.code === 2,
      attributes,
    })),
    [
      {
        name: "execute_tool Bash",
        parent: "0000000000000013",
        failed: true,
        attributes: {
          "gen_ai.operation.name": "execute_tool",
          "gen_ai.tool.name": "Bash",
          "gen_ai.tool.call.id": "1",
          "error.type": "failed",
        },
      },
      {
        name: "execute_tool Read",
        parent: "0000000000000013",
        failed: false,
        attributes: { "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "Read", "gen_ai.tool.call.id": "2" },
      },
      {
        name: "invoke_agent tested",
        parent: SPAN_ID,
        failed: true,
        attributes: {
          "gen_ai.operation.name": "invoke_agent",
          "gen_ai.agent.name": "tested",
          "dragoman.run.id": all[0]?.runId,
          "gen_ai.response.model": "m",
          "gen_ai.usage.input_tokens": 7,
          "gen_ai.usage.output_tokens": 0,
          "dragoman.run.outcome": "failed",
          "error.type": "model_refused",
        },
      },
    ],
  );
});

test("the last spans are exported before the end, if that is possible", { timeout: 60_000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "trace-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const flushes = {
    done: "Promise.resolve()",
    refused: 'Promise.reject(new Error("no collector"))',
    endless: "new Promise(() => {})",
  };
  const warnings = await Promise.all(
    Object.entries(flushes).map(async ([name, flush]) => {
      const program = `
        import { serve } from "@dragoman/adapter";
        import { trace } from "@opentelemetry/api";
        const forceFlush = () => (console.log("flushed"), ${flush});
        trace.setGlobalTracerProvider({ getTracer() {}, forceFlush });
        await serve({ describe: { adapter: "tested" }, run() {} });`;
      const env = { ...process.env, DRAGOMAN_LISTEN: `unix:${join(folder, name)}` };
      const child = spawn(process.execPath, ["--input-type=module", "--eval", program], {
        cwd: import.meta.dirname,
        env,
      });
      t.after(() => child.kill("SIGKILL"));
      const ended = new Promise((resolve) => child.on("close", resolve));
      let printed = "";
      child.stdout.on("data", (data: Buffer) => (printed += data.toString()));
      const lines: string[] = [];
      for await (const line of createInterface(child.stderr)) {
        if (line.includes("adapter ready")) child.kill("SIGTERM");
        if (line.includes("spans were not exported")) lines.push(line);
      }
      assert.deepEqual([await ended, printed], [0, "flushed\n"], name);
      return lines;
    }),
  );
  assert.deepEqual(
    warnings.map((lines) => lines.length),
    [0, 1, 1],
  );
  assert.ok(warnings[1]?.[0]?.includes("no collector"));
});
