import { ServerCredentials } from "@grpc/grpc-js";
import type { TlsFiles } from "@dragoman/client/grpc";
import type { SecureContextOptions } from "node:tls";

import type { Log } from "./adapter.js";

const LOOK_MS = 1_000;

/**
 * TLS from files. New connections get the certificate that is in the files, a second after it was written there; while
 * they hold none that can be used, the last one. With authorities, a client has to show a certificate of theirs.
 */
export class FileCredentials extends ServerCredentials {
  readonly #files: TlsFiles;
  readonly #log: Log;
  #stamp: string;

  /**
   * @param ending ends when the server does
   * @throws DragomanError ADDRESS_UNTRUSTED: the files cannot be used
   */
  constructor(files: TlsFiles, log: Log, ending: AbortSignal) {
    const stamp = files.stamp();
    super({ requestCert: files.authorities !== undefined }, contextOf(files));
    this.#stamp = stamp;
    this.#files = files;
    this.#log = log;
    const timer = setInterval(() => this.#look(), LOOK_MS).unref();
    ending.addEventListener("abort", () => clearInterval(timer), { once: true });
  }

  #look(): void {
    const stamp = this.#files.stamp(); // taken before the files are read: what is written meanwhile is read the next time
    if (stamp === this.#stamp) return;
    this.#stamp = stamp;
    try {
      this.updateSecureContextOptions(contextOf(this.#files));
      this.#log("info", "certificate reloaded", { certificate: this.#files.certificate ?? "" });
    } catch (error) {
      this.#log("warning", "certificate not reloaded; the last one stays", { error: (error as Error).message });
    }
  }

  override _equals(other: ServerCredentials): boolean {
    return other === this;
  }
}

function contextOf(files: TlsFiles): SecureContextOptions {
  const { certificate, key, authorities } = files.read();
  return { cert: certificate, key, ca: authorities };
}
