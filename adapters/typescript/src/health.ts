import { DragomanError } from "@dragoman/client";
import { toStatus } from "@dragoman/client/grpc";
import {
  Server,
  ServerCredentials,
  type ServerUnaryCall,
  type ServerWritableStream,
  type sendUnaryData,
} from "@grpc/grpc-js";
import { service } from "grpc-health-check";

type Status = "SERVING" | "NOT_SERVING" | "SERVICE_UNKNOWN";
interface Request {
  service: string;
}
interface Response {
  status: Status;
}

/** No service: served as long as the process answers, also while it drains. */
const LIVENESS = "liveness";

/** grpc.health.v1.Health, for a server that serves or does not. */
export class Health {
  readonly #services: Set<string>;
  readonly #watchers = new Set<ServerWritableStream<Request, Response>>();
  #status: Status = "SERVING";

  constructor(services: string[]) {
    this.#services = new Set(["", ...services]);
  }

  /**
   * Answers `check` at a port in the clear, and nothing else: for the kubelet, which knows no TLS and no Unix socket. Not
   * `watch`: its streams stay open, and who reaches the port could hold many.
   *
   * @param address a port of loopback, or "host:port"
   * @throws Error nothing can listen there
   */
  async listen(address: string): Promise<Server> {
    const server = new Server({
      "grpc.so_reuseport": 0,
      "grpc.max_receive_message_length": 4096, // a request holds the name of a service
      "grpc.max_concurrent_streams": 8,
      "grpc.max_connection_idle_ms": 60_000, // a probe asks once and goes
    });
    server.addService(service, {
      check: (call: ServerUnaryCall<Request, Response>, callback: sendUnaryData<Response>) => {
        if (call.request.service === LIVENESS) callback(null, { status: "SERVING" });
        else this.#check(call, callback);
      },
    });
    const target = /^\d+$/.test(address) ? `127.0.0.1:${address}` : address;
    await new Promise<void>((resolve, reject) => {
      server.bindAsync(target, ServerCredentials.createInsecure(), (error) =>
        error ? reject(new Error(`health cannot be served at ${address}: ${error.message}`)) : resolve(),
      );
    });
    return server;
  }

  #check(call: ServerUnaryCall<Request, Response>, callback: sendUnaryData<Response>): void {
    if (this.#services.has(call.request.service)) callback(null, { status: this.#status });
    else callback(toStatus(new DragomanError("SERVICE_UNKNOWN", "there is no such service here; '' is all of them")));
  }

  addTo(server: Server): void {
    server.addService(service, {
      check: (call: ServerUnaryCall<Request, Response>, callback: sendUnaryData<Response>) =>
        this.#check(call, callback),
      watch: (call: ServerWritableStream<Request, Response>) => {
        if (this.#services.has(call.request.service)) {
          this.#watchers.add(call);
          call.on("cancelled", () => this.#watchers.delete(call));
          call.write({ status: this.#status });
        } else {
          call.write({ status: "SERVICE_UNKNOWN" });
        }
      },
      list: (_call: ServerUnaryCall<unknown, unknown>, callback: sendUnaryData<unknown>) => {
        callback(null, {
          statuses: Object.fromEntries([...this.#services].map((name) => [name, { status: this.#status }])),
        });
      },
    });
  }

  /** Says that the server serves no more. */
  shutDown(): void {
    this.#status = "NOT_SERVING";
    for (const watcher of this.#watchers) watcher.write({ status: this.#status });
  }
}
