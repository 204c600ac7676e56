import { DragomanError } from "@dragoman/client";
import { toStatus } from "@dragoman/client/grpc";
import type { Server, ServerUnaryCall, ServerWritableStream, sendUnaryData } from "@grpc/grpc-js";
import { service } from "grpc-health-check";

type Status = "SERVING" | "NOT_SERVING" | "SERVICE_UNKNOWN";
interface Request {
  service: string;
}
interface Response {
  status: Status;
}

/** grpc.health.v1.Health, for a server that serves or does not. */
export class Health {
  readonly #services: Set<string>;
  readonly #watchers = new Set<ServerWritableStream<Request, Response>>();
  #status: Status = "SERVING";

  constructor(services: string[]) {
    this.#services = new Set(["", ...services]);
  }

  addTo(server: Server): void {
    server.addService(service, {
      check: (call: ServerUnaryCall<Request, Response>, callback: sendUnaryData<Response>) => {
        if (this.#services.has(call.request.service)) callback(null, { status: this.#status });
        else
          callback(toStatus(new DragomanError("SERVICE_UNKNOWN", "there is no such service here; '' is all of them")));
      },
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
