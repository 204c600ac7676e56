/** What stands between the generated services and grpc-js, for clients and for servers. */
import {
  create,
  fromBinary,
  toBinary,
  type DescMessage,
  type DescMethod,
  type DescService,
  type Message,
  type MessageInitShape,
  type MessageShape,
} from "@bufbuild/protobuf";
import {
  Metadata,
  type CallOptions,
  type Client,
  type ClientReadableStream,
  type MethodDefinition,
  type ServiceDefinition,
} from "@grpc/grpc-js";

import { fromStatus } from "./errors.js";

export { fieldError, fromStatus, toStatus } from "./errors.js";
export { isLoopback } from "./address.js";
export { TlsFiles, type Pem } from "./tls.js";

/** Returns the definition of a generated service, as grpc-js takes it. */
export function definitionOf(service: DescService): ServiceDefinition {
  return Object.fromEntries(service.methods.map((method) => [method.name, definitionOfMethod(method)]));
}

/** Returns the definition of one method of a generated service. */
export function definitionOfMethod<I extends DescMessage, O extends DescMessage>(
  method: DescMethod & { input: I; output: O },
): MethodDefinition<MessageShape<I>, MessageShape<O>> {
  const serialize =
    <D extends DescMessage>(schema: D) =>
    (message: MessageShape<D>) =>
      Buffer.from(toBinary(schema, message));
  const deserialize =
    <D extends DescMessage>(schema: D) =>
    (data: Buffer) =>
      fromBinary(schema, data);
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming",
    responseStream: method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming",
    requestSerialize: serialize(method.input),
    requestDeserialize: deserialize(method.input),
    responseSerialize: serialize(method.output),
    responseDeserialize: deserialize(method.output),
  };
}

/** Options of one call. */
export interface CallSettings {
  /** Ends the call: it fails with CANCELLED. */
  signal?: AbortSignal;
  /** Milliseconds after which the call fails with DEADLINE_EXCEEDED. Absent: no limit. */
  timeoutMs?: number;
}

type Calls<M> = M extends {
  methodKind: "unary";
  input: infer I extends DescMessage;
  output: infer O extends DescMessage;
}
  ? (request: MessageInitShape<I>, settings?: CallSettings) => Promise<MessageShape<O>>
  : M extends {
        methodKind: "server_streaming";
        input: infer I extends DescMessage;
        output: infer O extends DescMessage;
      }
    ? (request: MessageInitShape<I>, settings?: CallSettings) => AsyncIterable<MessageShape<O>>
    : never;

/** The calls of a service: a promise for each unary one, an async iterable for each that streams. */
export type ServiceCalls<S extends DescService> = { [K in keyof S["method"]]: Calls<S["method"][K]> };

/**
 * Returns the calls of a service. A failed one throws a `DragomanError`.
 *
 * @param client returns what a call is made with
 * @param metadata of each call
 * @param onAnswer called whenever the server was reached
 */
export function callsOf<S extends DescService>(
  client: () => Client,
  service: S,
  metadata: Metadata,
  onAnswer: () => void = () => {},
): ServiceCalls<S> {
  const calls = service.methods.map((method) => {
    const definition = definitionOfMethod(method);
    const call =
      method.methodKind === "unary"
        ? async (request: MessageInitShape<DescMessage>, settings: CallSettings = {}) => {
            const response = await unary(client(), definition, create(method.input, request), metadata, settings);
            onAnswer();
            return response;
          }
        : (request: MessageInitShape<DescMessage>, settings: CallSettings = {}) =>
            iterate(openStream(client(), definition, create(method.input, request), metadata, settings), settings);
    return [method.localName, call];
  });
  return Object.fromEntries(calls) as ServiceCalls<S>;
}

function optionsOf(settings: CallSettings): CallOptions {
  return settings.timeoutMs === undefined ? {} : { deadline: Date.now() + settings.timeoutMs };
}

function unary(
  client: Client,
  definition: MethodDefinition<Message, Message>,
  request: Message,
  metadata: Metadata,
  settings: CallSettings,
): Promise<Message> {
  return new Promise((resolve, reject) => {
    const call = client.makeUnaryRequest(
      definition.path,
      definition.requestSerialize,
      definition.responseDeserialize,
      request,
      metadata,
      optionsOf(settings),
      (error, response) => {
        settings.signal?.removeEventListener("abort", cancel);
        if (error) reject(fromStatus(error));
        else resolve(response as Message);
      },
    );
    const cancel = () => call.cancel();
    settings.signal?.addEventListener("abort", cancel, { once: true });
    if (settings.signal?.aborted) cancel();
  });
}

/** Opens a stream of responses. Its reader ends it with `cancel()`. */
export function openStream<I extends Message, O extends Message>(
  client: Client,
  definition: MethodDefinition<I, O>,
  request: I,
  metadata: Metadata,
  settings: CallSettings = {},
): ClientReadableStream<O> {
  return client.makeServerStreamRequest(
    definition.path,
    definition.requestSerialize,
    definition.responseDeserialize,
    request,
    metadata,
    optionsOf(settings),
  );
}

/** Returns the messages of a stream. Its failure comes last, also one that came before the first was read. */
export function messagesOf<O>(stream: ClientReadableStream<O>): AsyncIterator<O, undefined> {
  let failure: Error | undefined;
  stream.on("error", (error) => {
    failure ??= error;
  });
  return (async function* messages() {
    try {
      for await (const message of stream) yield message as O;
    } catch (error) {
      failure ??= error as Error;
    }
    if (failure) throw failure;
    return undefined;
  })();
}

async function* iterate<O>(stream: ClientReadableStream<O>, settings: CallSettings): AsyncIterable<O> {
  const cancel = () => stream.cancel();
  settings.signal?.addEventListener("abort", cancel, { once: true });
  if (settings.signal?.aborted) cancel();
  try {
    const messages = messagesOf(stream);
    for (let next = await messages.next(); !next.done; next = await messages.next()) yield next.value;
  } catch (error) {
    throw fromStatus(error);
  } finally {
    settings.signal?.removeEventListener("abort", cancel);
    stream.cancel();
  }
}
