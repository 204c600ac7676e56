/** TLS on TCP, from PEM files that environment variables name and that a rotation of certificates replaces. */
import { X509Certificate } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { createSecureContext } from "node:tls";

import { DragomanError } from "./errors.js";

const CERT = "DRAGOMAN_TLS_CERT";
const KEY = "DRAGOMAN_TLS_KEY";
const CA = "DRAGOMAN_TLS_CA";

/** What the files hold. */
export interface Pem {
  /** This process's certificate, with its chain. */
  certificate?: Buffer;
  key?: Buffer;
  /** The authorities that peers' certificates are of. */
  authorities?: Buffer;
}

/** The files that DRAGOMAN_TLS_CERT, DRAGOMAN_TLS_KEY and DRAGOMAN_TLS_CA name. */
export class TlsFiles {
  readonly certificate = process.env[CERT] || undefined;
  readonly key = process.env[KEY] || undefined;
  readonly authorities = process.env[CA] || undefined;

  /** @throws DragomanError ADDRESS_UNTRUSTED: a certificate without a key, or the reverse */
  constructor() {
    if ((this.certificate === undefined) !== (this.key === undefined))
      throw untrusted(`${CERT} and ${KEY} belong together: set both or neither`);
  }

  /** All paths that are set. */
  get paths(): string[] {
    return [this.certificate, this.key, this.authorities].filter((path) => path !== undefined);
  }

  /** Returns what differs once a file was replaced or written; empty if one is missing. */
  stamp(): string {
    const found = this.paths.map((path) => statSync(path, { bigint: true, throwIfNoEntry: false }));
    if (found.includes(undefined)) return "";
    return found.map((file) => `${file?.ino} ${file?.mtimeNs} ${file?.size}`).join(", ");
  }

  /**
   * Returns what the files hold.
   *
   * @throws DragomanError ADDRESS_UNTRUSTED: a file cannot be read or used; the message quotes nothing of it
   */
  read(): Pem {
    try {
      const read = (path: string | undefined) => (path === undefined ? undefined : readFileSync(path));
      const pem = { certificate: read(this.certificate), key: read(this.key), authorities: read(this.authorities) };
      createSecureContext({ cert: pem.certificate, key: pem.key }); // it checks that they belong together
      if (pem.authorities) new X509Certificate(pem.authorities); // nothing in it would be trust in nobody, or in all
      return pem;
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      const why = code ?? message;
      throw untrusted(`TLS: ${this.paths.join(", ")}: ${why}; each is a PEM file, and the key is the certificate's`);
    }
  }
}

function untrusted(message: string): DragomanError {
  return new DragomanError("ADDRESS_UNTRUSTED", message);
}
