// A server of AdapterService whose answers a test writes.
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Metadata, Server, ServerCredentials, type ServerUnaryCall, type ServerWritableStream } from "@grpc/grpc-js";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { DragomanError } from "../src/errors.js";
import { definitionOf, toStatus } from "../src/grpc.js";
import {
  AdapterService,
  AgentEventSchema,
  CancelResponseSchema,
  DescribeResponseSchema,
  Outcome,
  RespondResponseSchema,
  type AgentEvent,
  type AttachRequest,
  type CancelRequest,
  type DescribeRequest,
  type ExecuteRequest,
  type RespondRequest,
} from "../src/v1.js";

/** What a stream of the fake server does. */
export type Script<R> = (request: R, stream: FakeStream) => void | Promise<void>;

/** The server's end of a stream. */
export class FakeStream {
  readonly #call: ServerWritableStream<{ runId: string }, AgentEvent>;

  constructor(call: ServerWritableStream<{ runId: string }, AgentEvent>) {
    this.#call = call;
  }

  /** Accepts the run. */
  accept(): this {
    const metadata = new Metadata();
    metadata.set("dragoman-run-id", this.#call.request.runId);
    this.#call.sendMetadata(metadata);
    return this;
  }

  send(...events: MessageInitShape<typeof AgentEventSchema>[]): this {
    for (const event of events)
      this.#call.write(create(AgentEventSchema, { runId: this.#call.request.runId, ...event }));
    return this;
  }

  /** Sends events as they are, with what no revision of today knows. */
  sendAsIs(...events: AgentEvent[]): this {
    for (const event of events) this.#call.write(event);
    return this;
  }

  end(): void {
    this.#call.end();
  }

  fail(error: DragomanError): void {
    this.#call.emit("error", toStatus(error));
  }
}

export const text = (sequence: number, delta: string): MessageInitShape<typeof AgentEventSchema> => ({
  sequence: BigInt(sequence),
  body: { case: "text", value: { itemId: "a", content: { case: "delta", value: delta } } },
});

export const result = (sequence: number): MessageInitShape<typeof AgentEventSchema> => ({
  sequence: BigInt(sequence),
  body: { case: "result", value: { outcome: Outcome.SUCCEEDED } },
});

/** The fake server. Scripts are taken in turn, one a call. */
export class Fake {
  readonly address: string;
  readonly requests: (ExecuteRequest | AttachRequest)[] = [];
  readonly responses: RespondRequest[] = [];
  readonly cancels: CancelRequest[] = [];
  execute: Script<ExecuteRequest>[] = [];
  attach: Script<AttachRequest>[] = [];
  #server = new Server();

  constructor(t: TestContext) {
    const folder = mkdtempSync(join(tmpdir(), "fake-"));
    this.address = `unix:${join(folder, "a.sock")}`;
    t.after(() => {
      this.stop();
      rmSync(folder, { recursive: true });
    });
  }

  async start(): Promise<this> {
    this.#server = new Server();
    const stream =
      <R extends ExecuteRequest | AttachRequest>(scripts: () => Script<R>[]) =>
      (call: ServerWritableStream<R, AgentEvent>) => {
        this.requests.push(call.request);
        const end = new FakeStream(call);
        const script = scripts().shift();
        if (script) void script(call.request, end);
        else end.fail(new DragomanError("RUN_NOT_FOUND", "no such run"));
      };
    type Answer = (error: null, response: unknown) => void;
    this.#server.addService(definitionOf(AdapterService), {
      Execute: stream(() => this.execute),
      Attach: stream(() => this.attach),
      Describe: (call: ServerUnaryCall<DescribeRequest, unknown>, answer: Answer & ((error: object) => void)) => {
        const missing = { metadata: { did_you_mean: "echo" } };
        if (call.request.adapter === "ehco")
          answer(toStatus(new DragomanError("ADAPTER_NOT_FOUND", "no adapter ehco", missing)));
        else answer(null, create(DescribeResponseSchema, { adapter: "echo" }));
      },
      Cancel: (call: ServerUnaryCall<CancelRequest, unknown>, answer: Answer) => {
        this.cancels.push(call.request);
        answer(null, create(CancelResponseSchema, { outcome: Outcome.CANCELLED }));
      },
      Respond: (call: ServerUnaryCall<RespondRequest, unknown>, answer: Answer) => {
        this.responses.push(call.request);
        answer(null, create(RespondResponseSchema, { sequence: 7n }));
      },
    });
    await new Promise<void>((resolve, reject) => {
      this.#server.bindAsync(this.address, ServerCredentials.createInsecure(), (error) =>
        error ? reject(error) : resolve(),
      );
    });
    return this;
  }

  /** Breaks all connections. */
  stop(): void {
    this.#server.forceShutdown();
  }
}
