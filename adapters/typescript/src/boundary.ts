/**
 * Between gRPC and the adapter: statuses of what goes wrong, bounds of requests, streams that wait for their readers.
 */
import {
  fromBinary,
  toBinary,
  type DescMessage,
  type DescMethod,
  type DescService,
  type Message,
  type MessageShape,
} from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import type { DescFile } from "@bufbuild/protobuf";
import { DragomanError } from "@dragoman/client";
import { fieldError, toStatus } from "@dragoman/client/grpc";
import type {
  handleServerStreamingCall,
  handleUnaryCall,
  MethodDefinition,
  Server as GrpcServer,
  ServerUnaryCall,
  ServerWritableStream,
  ServiceDefinition,
  UntypedServiceImplementation,
} from "@grpc/grpc-js";
import { loadSync, type PackageDefinition } from "@grpc/proto-loader";
import { protoPath } from "grpc-health-check";
import { randomBytes } from "node:crypto";
import { once } from "node:events";

import type { Log } from "./adapter.js";
import { checkBounds } from "./bounds.js";
import { textOf } from "./failure.js";
import { traced, traceIn, type TraceContext } from "./trace.js";

/** A request as it was received, or why it could not be read. */
interface Received {
  message: Message | undefined;
  size: number;
}

type Call = Pick<ServerUnaryCall<Received, Uint8Array>, "request" | "getPeer" | "metadata">;

/** Answers a unary call. */
export type Answer<I extends DescMessage, O extends DescMessage> = (
  request: MessageShape<I>,
  call: CallInfo,
) => Promise<MessageShape<O>> | MessageShape<O>;

/** Writes a stream of events, as they are sent. */
export type Stream<I extends DescMessage> = (request: MessageShape<I>, call: StreamInfo) => Promise<void>;

/** What is known of a call. */
export interface CallInfo {
  /** Ends when the caller is gone. */
  signal: AbortSignal;
  /** Who calls, for the record. */
  caller: string;
  /** The trace that the call belongs to. */
  trace: TraceContext;
}

/** A call that is answered by a stream. */
export interface StreamInfo extends CallInfo {
  /** Sends the initial metadata: the call is accepted. */
  accept: (runId: string) => void;
  /** Sends a message, and waits while the reader is behind. */
  send: (bytes: Uint8Array) => Promise<void>;
}

/** What answers the calls of a service; a call that nothing answers is refused, as those of later revisions are. */
type Handlers<S extends DescService> = {
  [K in keyof S["method"]]?: S["method"][K] extends {
    methodKind: "unary";
    input: infer I extends DescMessage;
    output: infer O extends DescMessage;
  }
    ? Answer<I, O>
    : S["method"][K] extends { input: infer I extends DescMessage }
      ? Stream<I>
      : never;
};

/** Returns the definition of a service whose requests keep their size, and whose streams are of bytes. */
export function definitionFor(service: DescService): ServiceDefinition {
  return Object.fromEntries(service.methods.map((method) => [method.localName, definitionForMethod(method)]));
}

function definitionForMethod(method: DescMethod): MethodDefinition<Received, Message | Uint8Array> {
  const isStream = method.methodKind === "server_streaming";
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: false,
    responseStream: isStream,
    requestSerialize: ({ message }) => Buffer.from(message ? toBinary(method.input, message) : []),
    requestDeserialize: (data) => {
      try {
        return { message: fromBinary(method.input, data), size: data.length };
      } catch {
        return { message: undefined, size: data.length };
      }
    },
    responseSerialize: (value) => Buffer.from(value instanceof Uint8Array ? value : toBinary(method.output, value)),
    responseDeserialize: (data) => data,
  };
}

/** Returns what serves a service, of what answers its calls. */
export function implementationOf<S extends DescService>(
  service: S,
  handlers: Handlers<S>,
  log: Log,
): UntypedServiceImplementation {
  return Object.fromEntries(
    service.methods.map((method) => {
      const handler = handlers[method.localName as keyof S["method"]] ?? unserved(method);
      const implementation =
        method.methodKind === "unary"
          ? unary(method, handler as Answer<DescMessage, DescMessage>, log)
          : streaming(method, handler as Stream<DescMessage>, log);
      return [method.localName, implementation];
    }),
  );
}

/**
 * Lets a server answer calls of methods that it does not have with a reason, as those of later revisions. grpc-js has no
 * hook for them: it looks for their handlers in a map.
 */
export function explainUnknown(server: GrpcServer): void {
  const { handlers } = server as unknown as { handlers: Map<string, object> };
  const get = handlers.get.bind(handlers);
  const func: handleUnaryCall<Buffer, Buffer> = (call, callback) =>
    callback(toStatus(new DragomanError("NOT_IMPLEMENTED", `${call.getPath()} is not served here`)));
  const same = (data: Buffer) => data;
  handlers.get = (path) => get(path) ?? { path, type: "unary", func, serialize: same, deserialize: same };
}

function unserved({ parent, name }: DescMethod): () => never {
  return () => {
    throw new DragomanError("NOT_IMPLEMENTED", `/${parent.typeName}/${name} is not served here`);
  };
}

function unary(
  method: DescMethod,
  answer: Answer<DescMessage, DescMessage>,
  log: Log,
): handleUnaryCall<Received, Message> {
  return (call, callback) => {
    const controller = new AbortController();
    call.on("cancelled", () => controller.abort());
    const info = { signal: controller.signal, caller: callerOf(call), trace: traceIn(call.metadata) };
    (async () => answer(requestOf(method, call), info))().then(
      (response) => callback(null, response),
      (error: unknown) => callback(toStatus(explained(method, error, traced(log, info.trace)))),
    );
  };
}

function streaming(
  method: DescMethod,
  write: Stream<DescMessage>,
  log: Log,
): handleServerStreamingCall<Received, Uint8Array> {
  return (call) => {
    const controller = new AbortController();
    call.on("cancelled", () => controller.abort());
    const { signal } = controller;
    const info: StreamInfo = {
      signal,
      caller: callerOf(call),
      trace: traceIn(call.metadata),
      accept: (runId) => {
        const metadata = call.metadata.clone();
        for (const key of Object.keys(metadata.getMap())) metadata.remove(key);
        metadata.set("dragoman-run-id", runId);
        call.sendMetadata(metadata);
      },
      send: async (bytes) => {
        if (!call.write(bytes)) await once(call, "drain", { signal }).catch(() => {}); // the caller is gone
      },
    };
    (async () => write(requestOf(method, call), info))().then(
      () => call.end(),
      (error: unknown) => fail(call, explained(method, error, traced(log, info.trace))),
    );
  };
}

function fail(call: ServerWritableStream<Received, Uint8Array>, error: DragomanError): void {
  call.emit("error", toStatus(error));
}

function requestOf(method: DescMethod, call: Call): Message {
  const { message, size } = call.request;
  if (!message) throw fieldError("INVALID_REQUEST", { field: "", description: `this is no ${method.input.name}` });
  checkBounds(method.input, message, size);
  return message;
}

function callerOf(call: Call): string {
  return /:\d+$/.test(call.getPeer()) ? "token" : `uid ${process.geteuid?.()}`;
}

/** Returns an error with a reason of the contract. No text of another error reaches a caller. */
function explained(method: DescMethod, error: unknown, log: Log): DragomanError {
  if (error instanceof DragomanError) return error;
  const incident = randomBytes(6).toString("hex");
  log("error", "internal error", {
    rpc: method.name,
    incident,
    error: textOf(error),
  });
  return new DragomanError("INTERNAL", `internal error; the server's log has more under incident ${incident}`, {
    metadata: { incident },
  });
}

/** Returns what reflection shows of a service, and of health. */
export function reflected(service: DescService): PackageDefinition {
  const files = new Map<string, Buffer>();
  const add = (file: DescFile) => {
    if (files.has(file.name)) return;
    file.dependencies.forEach(add);
    files.set(file.name, Buffer.from(toBinary(FileDescriptorProtoSchema, file.proto)));
  };
  add(service.file);
  const own = { format: "Protocol Buffer 3 DescriptorProto", type: {}, fileDescriptorProtos: [...files.values()] };
  return { ...loadSync(protoPath), [service.typeName]: own } as PackageDefinition;
}
