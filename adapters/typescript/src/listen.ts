import { DragomanError, userToken } from "@dragoman/client";
import { isLoopback, TlsFiles, toStatus } from "@dragoman/client/grpc";
import { Server, ServerCredentials, ServerInterceptingCall, type ServerInterceptor } from "@grpc/grpc-js";
import { createHash, timingSafeEqual } from "node:crypto";
import { lstatSync, rmSync, statSync } from "node:fs";
import { connect, createServer } from "node:net";
import { dirname, isAbsolute } from "node:path";

import type { Log } from "./adapter.js";
import { FileCredentials } from "./tls.js";

const HEALTH = "/grpc.health.v1.Health/";

/**
 * Lets a server listen at "unix:/path", which only this user can reach, or at "host:port", where callers need this
 * user's token: with a certificate (see `TlsFiles`) by TLS and anywhere, without one on loopback.
 *
 * @param ending ends when the server does
 * @throws Error nothing can listen there; the message says why
 */
export async function listen(server: Server, address: string, log: Log, ending: AbortSignal): Promise<void> {
  if (!address.startsWith("unix:")) {
    const files = new TlsFiles();
    const hasTls = files.certificate !== undefined;
    checkTcp(address, hasTls);
    await bind(server, address, hasTls ? new FileCredentials(files, log, ending) : undefined);
    return;
  }
  const path = address.slice("unix:".length).replace(/^\/\/(?=\/)/, "");
  if (!isAbsolute(path)) throw new Error(`"${address}": the path of a Unix socket is absolute`);
  const directory = statSync(dirname(path), { throwIfNoEntry: false });
  if (!directory) throw new Error(`listen on ${address}: ${dirname(path)} does not exist`);
  if ((directory.mode & 0o022) !== 0) {
    throw new Error(
      `listen on ${address}: other users can write to ${dirname(path)} and could replace the socket; ` +
        "use a directory that only you can write",
    );
  }
  await lock(path, address);
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found && !found.isSocket())
    throw new Error(`listen on ${address}: something is there that is no socket; choose another path`);
  if (found && (await isServed(path))) throw taken(address);
  if (found) rmSync(path); // of a server that was killed
  const before = process.umask(0o177); // only this user may open the socket, from its first moment
  try {
    await bind(server, `unix:${path}`);
  } finally {
    process.umask(before);
  }
}

function taken(address: string): Error {
  return new Error(`another server listens on ${address}; stop it or choose another path`);
}

/**
 * Keeps another server from the same path for the life of this process. Where there is no such lock, a call finds a
 * live server.
 */
async function lock(path: string, address: string): Promise<void> {
  if (process.platform !== "linux") return;
  const name = createHash("sha256").update(path).digest("hex").slice(0, 32);
  const holder = createServer((socket) => socket.destroy());
  await new Promise<void>((resolve, reject) => {
    holder.once("error", () => reject(taken(address)));
    holder.listen(`\0dragoman-${process.geteuid?.()}-${name}`, resolve); // the kernel frees it when this process ends
  });
  holder.unref();
}

function isServed(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path, () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", () => resolve(false));
  });
}

function bind(server: Server, target: string, credentials = ServerCredentials.createInsecure()): Promise<void> {
  return new Promise((resolve, reject) => {
    server.bindAsync(target, credentials, (error) => (error ? reject(error) : resolve()));
  });
}

function checkTcp(address: string, hasTls: boolean): void {
  const host = /^\[?(.*?)\]?:\d+$/.exec(address)?.[1];
  if (host === undefined) throw new Error(`"${address}" is no address; use unix:/path or host:port`);
  if (!isLoopback(host) && !hasTls) {
    throw new Error(
      `refusing to listen on ${address} without TLS: what can reach it can run programs as this user. Listen on ` +
        "127.0.0.1:PORT or unix:/path, or set DRAGOMAN_TLS_CERT and DRAGOMAN_TLS_KEY to the files of a certificate " +
        "and its key.",
    );
  }
  if (process.env["DRAGOMAN_TRUST"]) {
    throw new Error(
      "DRAGOMAN_TRUST is set, and adapters on the TypeScript SDK do not know callers by their certificates: unset it " +
        "for this process, and give its callers the token",
    );
  }
  if (userToken() === undefined)
    throw new Error("over TCP callers need a token, and there is none: 'dragoman token' makes it");
}

/** Refuses calls over TCP without this user's token. Over a Unix socket, its mode keeps other users out. */
export const admission: ServerInterceptor = (method, call) =>
  new ServerInterceptingCall(call, {
    start: (next) =>
      next({
        onReceiveMetadata: (metadata, admit) => {
          const isUnix = !/:\d+$/.test(call.getPeer());
          if (isUnix || method.path.startsWith(HEALTH) || metadata.get("authorization").some(isToken)) admit(metadata);
          else
            call.sendStatus(
              toStatus(
                new DragomanError(
                  "TOKEN_REQUIRED",
                  "over TCP each call needs the metadata 'authorization: Bearer TOKEN', with what 'dragoman token' prints",
                ),
              ),
            );
        },
      }),
  });

function isToken(sent: string | Buffer): boolean {
  const digest = (text: string | Buffer) => createHash("sha256").update(text).digest();
  const token = userToken();
  return token !== undefined && timingSafeEqual(digest(sent), digest(`Bearer ${token}`));
}
