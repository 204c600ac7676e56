// An adapter in a few lines, without the SDK: it says the words of its prompt, and declares no duty. A router renders
// its templates, keeps its limits, redacts its events and refuses what it cannot honour.
import { definitionOf } from "@dragoman/client/grpc";
import {
  AdapterService,
  EventOrigin,
  Outcome,
  create,
  AgentEventSchema,
  DescribeResponseSchema,
  type ExecuteRequest,
  type MessageInitShape,
} from "@dragoman/client/v1";
import { Metadata, Server, ServerCredentials, type ServerWritableStream } from "@grpc/grpc-js";
import { HealthImplementation } from "grpc-health-check";
import { setTimeout as delay } from "node:timers/promises";

const cancels = new Map<string, AbortController>();

async function execute(call: ServerWritableStream<ExecuteRequest, unknown>): Promise<void> {
  const { request } = call;
  const { runId, relay } = request;
  const controller = new AbortController();
  cancels.set(runId, controller);
  call.on("cancelled", () => controller.abort());
  const header = new Metadata();
  header.set("dragoman-run-id", runId);
  call.sendMetadata(header);
  const common = { runId, attempt: relay?.firstAttempt || 1, origin: EventOrigin.AGENT };
  let sequence = relay?.firstSequence || 1n;
  const send = (body: MessageInitShape<typeof AgentEventSchema>["body"]) =>
    call.write(create(AgentEventSchema, { ...common, sequence: sequence++, body }));
  send({ case: "started", value: { adapter: "bare_ts", instanceId: "bare-1" } });
  let offset = 0;
  for (const word of request.task.case === "prompt" ? request.task.value.split(/(?<= )/) : []) {
    if (word.trim() === "forever") await delay(3_600_000, undefined, { signal: controller.signal }).catch(() => {});
    // "$NAME" is a variable; what it says comes character by character, as from a model.
    for (const piece of word.replace(/\$(\w+)/g, (_, name: string) => request.env[name] ?? "")) {
      send({
        case: "text",
        value: { itemId: "answer", offset: BigInt(offset), content: { case: "delta", value: piece } },
      });
      offset += Buffer.byteLength(piece);
    }
  }
  send({ case: "result", value: { outcome: controller.signal.aborted ? Outcome.CANCELLED : Outcome.SUCCEEDED } });
  cancels.delete(runId);
  call.end();
}

const server = new Server();
server.addService(definitionOf(AdapterService), {
  Describe: (_: unknown, answer: Function) =>
    answer(null, create(DescribeResponseSchema, { adapter: "bare_ts", revision: 1, instanceId: "bare-1" })),
  Execute: execute,
  Cancel: (call: { request: { runId: string } }, answer: Function) => {
    cancels.get(call.request.runId)?.abort();
    answer(null, { $typeName: "dragoman.v1.CancelResponse", outcome: Outcome.CANCELLED, resultSequence: 0n });
  },
});
new HealthImplementation({ "": "SERVING" }).addToServer(server);
server.bindAsync(process.env["DRAGOMAN_LISTEN"]!, ServerCredentials.createInsecure(), (error) => {
  if (error) throw error;
});
