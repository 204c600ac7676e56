import { create, clone, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Client as GrpcClient, Metadata, connectivityState, credentials, type ChannelCredentials } from "@grpc/grpc-js";
import { randomBytes } from "node:crypto";

import { checkPlace, defaultAddress, parseAddress, userToken, type Place } from "./address.js";
import { DragomanError, fromStatus } from "./errors.js";
import {
  AdapterService,
  AttachRequestSchema,
  ExecuteRequestSchema,
  type AttachRequest,
  type CancelRequestSchema,
  type CancelResponse,
  type DescribeResponse,
  type DetectRequestSchema,
  type Detection,
  type ExecuteRequest,
  type RespondRequestSchema,
  type RespondResponse,
} from "./gen/dragoman/v1/adapter_pb.js";
import { RouterService, type ListRunsRequestSchema, type RunSummary } from "./gen/dragoman/v1/router_pb.js";
import { callsOf, type CallSettings, type ServiceCalls } from "./grpc.js";
import { Run } from "./run.js";
import { TlsFiles } from "./tls.js";

const MIB = 1 << 20;
const LARGEST_MESSAGE = 17 * MIB; // above the contract's own limit, so that that one is reported, with a reason
const DEFAULT_REATTACH_MS = 30_000;
const DEFAULT_ORPHAN_AFTER_MS = 30_000;
const PAGE = 1000;
const CONNECT_MS = 20_000;
const CHANNEL_OPTIONS = {
  "grpc.max_receive_message_length": LARGEST_MESSAGE,
  "grpc.max_send_message_length": LARGEST_MESSAGE,
  "grpc.enable_http_proxy": 0, // a proxy variable would catch loopback addresses too
  "grpc.enable_retries": 0, // Execute must not run twice because a library tried again
  "grpc.service_config_disable_resolution": 1,
  "grpc.use_local_subchannel_pool": 1,
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
};

/** Options of a client. */
export interface ClientOptions {
  /**
   * The token of calls over TCP. Default: `DRAGOMAN_TOKEN`, else this user's token, which is sent only to a server of
   * this user on this machine.
   */
  token?: string;
  /** Milliseconds for which a broken stream is reconnected without progress. Default: 30,000. */
  reattachMs?: number;
  /**
   * TLS, from `credentials.createSsl` of grpc-js. Default: over TCP, if `DRAGOMAN_TLS_CA` names a file, its authorities
   * and the certificate of `DRAGOMAN_TLS_CERT` and `DRAGOMAN_TLS_KEY`; a call after one of the files was replaced uses
   * the new one. A server on another machine is called with TLS only.
   */
  credentials?: ChannelCredentials;
}

/**
 * A client of a router or of one adapter. It connects with the first call.
 *
 * Every failed call throws a `DragomanError`; its `reason` is stable, for programs.
 */
export class Client {
  readonly address: string;
  /** The unary calls of AdapterService. Its `execute` and `attach` are single streams; see `execute` of the client. */
  readonly adapter: ServiceCalls<typeof AdapterService>;
  /** The calls of RouterService, which only a router serves. */
  readonly router: ServiceCalls<typeof RouterService>;
  readonly #link: Link;

  /**
   * @param address `unix:/path` or `host:port`. Default: `DRAGOMAN_ROUTER`, else this user's router
   * @throws DragomanError ADDRESS_UNTRUSTED if another user could listen there, or the files of TLS cannot be used
   */
  constructor(address?: string, options: ClientOptions = {}) {
    this.address = address || defaultAddress();
    this.#link = new Link(this.address, options);
    this.adapter = callsOf(() => this.#link.grpc, AdapterService, this.#link.metadata, this.#link.reached);
    this.router = callsOf(() => this.#link.grpc, RouterService, this.#link.metadata, this.#link.reached);
  }

  /**
   * Runs an agent. The request is sent when the run is first read, or by `run.accepted()`.
   *
   * Without a run ID it gets a new one, which makes sending it idempotent; without `orphanAfter` it gets 30 seconds.
   * The end of the signal ends the stream, not the run: use `run.cancel()` to end that.
   */
  execute(request: MessageInitShape<typeof ExecuteRequestSchema>, settings: { signal?: AbortSignal } = {}): Run {
    const own: ExecuteRequest = clone(ExecuteRequestSchema, create(ExecuteRequestSchema, request));
    own.runId ||= `run-${randomBytes(12).toString("hex")}`;
    own.orphanAfter ??= durationFromMs(DEFAULT_ORPHAN_AFTER_MS);
    const attach = create(AttachRequestSchema, { runId: own.runId, adapter: own.adapter, hold: true });
    return new Run(this.#link, this, { attach, execute: own, signal: settings.signal });
  }

  /**
   * Follows a run that exists: the events after a sequence, `replayDone`, then live events. Set `hold` to keep the
   * run from being orphaned while the stream is open.
   */
  attach(request: MessageInitShape<typeof AttachRequestSchema>, settings: { signal?: AbortSignal } = {}): Run {
    const attach: AttachRequest = clone(AttachRequestSchema, create(AttachRequestSchema, request));
    return new Run(this.#link, this, { attach, signal: settings.signal });
  }

  /** Cancels a run, and answers once its result is recorded. */
  cancel(request: MessageInitShape<typeof CancelRequestSchema>, settings?: CallSettings): Promise<CancelResponse> {
    return this.adapter.cancel(request, settings);
  }

  /** Answers an input request. The first valid answer wins; the same one again is good. */
  respond(request: MessageInitShape<typeof RespondRequestSchema>, settings?: CallSettings): Promise<RespondResponse> {
    return this.adapter.respond(request, settings);
  }

  /** Returns an adapter's version, capabilities and settings. */
  describe(adapter = "", settings?: CallSettings): Promise<DescribeResponse> {
    return this.adapter.describe({ adapter }, settings);
  }

  /** Looks for agents: of one adapter, or of all adapters of a router. */
  async detect(
    request: MessageInitShape<typeof DetectRequestSchema> = {},
    settings?: CallSettings,
  ): Promise<Detection[]> {
    return (await this.adapter.detect(request, settings)).detections;
  }

  /**
   * Lists a router's runs, newest first.
   *
   * @param filters fields that are set must match
   * @param limit how many at most
   */
  async listRuns(
    filters: MessageInitShape<typeof ListRunsRequestSchema> = {},
    limit = 100,
    settings?: CallSettings,
  ): Promise<RunSummary[]> {
    const found: RunSummary[] = [];
    let pageToken = "";
    do {
      const pageSize = Math.min(PAGE, limit - found.length);
      const page = await this.router.listRuns({ ...filters, pageSize, pageToken }, settings);
      found.push(...page.runs);
      pageToken = page.nextPageToken;
    } while (pageToken !== "" && found.length < limit);
    return found.slice(0, limit);
  }

  /** Closes the connection and detaches from all runs. */
  close(): void {
    this.#link.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** A connection, and what is known of the server behind it. */
export class Link {
  readonly metadata = new Metadata();
  readonly reattachMs: number;
  /** Whether the server rejected batches, as one of an earlier revision does. */
  rejectsBatches = false;
  readonly #target: string;
  readonly #options: ClientOptions;
  readonly #files: TlsFiles | undefined;
  #stamp: string | undefined;
  #grpc: GrpcClient;
  readonly #before: GrpcClient[] = []; // what was called with certificates that were replaced; its calls continue
  #isReached = false;

  constructor(address: string, options: ClientOptions) {
    const place = parseAddress(address);
    this.#files = options.credentials || place.path !== undefined ? undefined : clientFiles();
    const token = tokenFor(place, options, Boolean(options.credentials ?? this.#files));
    if (token !== undefined) this.metadata.set("authorization", `Bearer ${token}`);
    this.reattachMs = options.reattachMs ?? DEFAULT_REATTACH_MS;
    this.#target = place.target;
    this.#options = options;
    this.#stamp = this.#files?.stamp();
    this.#grpc = this.#open();
  }

  /** For the next call: with the certificates that are in the files by now. */
  get grpc(): GrpcClient {
    const stamp = this.#files?.stamp();
    if (stamp === this.#stamp) return this.#grpc;
    this.#stamp = stamp; // taken before the files are read: what is written meanwhile is read at the next call
    try {
      const opened = this.#open();
      this.#before.push(this.#grpc);
      this.#grpc = opened;
    } catch (error) {
      process.emitWarning(`certificate not reloaded; the last one stays: ${(error as Error).message}`);
    }
    return this.#grpc;
  }

  close(): void {
    for (const client of [...this.#before, this.#grpc]) client.close();
  }

  #open(): GrpcClient {
    return new GrpcClient(this.#target, this.#options.credentials ?? channelCredentials(this.#files), CHANNEL_OPTIONS);
  }

  get isReached(): boolean {
    return this.#isReached;
  }

  /** Takes note that the server was reached. */
  readonly reached = (): void => {
    this.#isReached = true;
  };

  /** Returns what a status says; a reason of the contract in it shows that the server was reached. */
  convert(cause: unknown): DragomanError {
    const error = fromStatus(cause);
    if (error.reason !== undefined) this.reached();
    return error;
  }

  /**
   * Waits for the first connection, or for the failure of the attempt. A failed call alone does not show whether the
   * request was sent: if the connection was refused it was not, if it broke it may have been.
   */
  async connected(): Promise<void> {
    const channel = this.#grpc.getChannel();
    while (!this.#isReached) {
      const state = channel.getConnectivityState(true);
      if (state === connectivityState.READY) this.reached();
      else if (state !== connectivityState.IDLE && state !== connectivityState.CONNECTING) return;
      else {
        // With a deadline, the wait keeps the process alive.
        await new Promise<void>((resolve) =>
          channel.watchConnectivityState(state, Date.now() + CONNECT_MS, () => resolve()),
        );
      }
    }
  }
}

/** Returns the files of a client's TLS; undefined without authorities. */
function clientFiles(): TlsFiles | undefined {
  const files = new TlsFiles();
  return files.authorities === undefined ? undefined : files;
}

function channelCredentials(files: TlsFiles | undefined): ChannelCredentials {
  if (!files) return credentials.createInsecure();
  const { authorities = null, key = null, certificate = null } = files.read();
  return credentials.createSsl(authorities, key, certificate);
}

/** Returns the token that calls to a place carry. */
function tokenFor(place: Place, options: ClientOptions, hasTls: boolean): string | undefined {
  if (!place.isLocal && !hasTls) {
    throw new DragomanError(
      "ADDRESS_UNTRUSTED",
      `${place.target} is on another machine: prompts and tokens would travel in the clear; set DRAGOMAN_TLS_CA to the ` +
        "authorities that sign the server's certificate, or pass credentials for TLS",
    );
  }
  if (place.path === undefined && options.token !== undefined) return options.token; // the caller chose to send it there
  if (place.isLocal) checkPlace(place);
  if (place.path !== undefined) return undefined;
  return place.isLocal ? userToken() : process.env["DRAGOMAN_TOKEN"]?.trim() || undefined;
}
