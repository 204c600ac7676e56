import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  openSync,
  readFileSync,
  readSync,
  statSync,
  type Stats,
} from "node:fs";
import { isIP } from "node:net";
import { homedir } from "node:os";
import { dirname, isAbsolute, join } from "node:path";

import { DragomanError } from "./errors.js";

const LONGEST_SOCKET = 103; // bytes of a socket's path on every system
const LISTENING = "0A";

/** Returns where clients look for a router: `DRAGOMAN_ROUTER`, else the socket of this user's router. */
export function defaultAddress(): string {
  return process.env["DRAGOMAN_ROUTER"] || `unix:${join(defaultDirectory(), "router.sock")}`;
}

function defaultDirectory(): string {
  const candidates = [join(stateDirectory(), "run"), `/tmp/dragoman-${euid()}`];
  const base = process.env["XDG_RUNTIME_DIR"] ?? "";
  // After su, the variable may still name the directory of the user before.
  if (isAbsolute(base) && statOf(base)?.uid === euid()) candidates.unshift(join(base, "dragoman"));
  const fits = (directory: string) => Buffer.byteLength(join(directory, "router.sock")) <= LONGEST_SOCKET;
  return candidates.find(fits) ?? `/tmp/dragoman-${euid()}`;
}

function stateDirectory(): string {
  const base = process.env["XDG_STATE_HOME"];
  if (base) return join(base, "dragoman");
  return process.platform === "darwin"
    ? join(homedir(), "Library", "Application Support", "dragoman")
    : join(homedir(), ".local", "state", "dragoman");
}

/**
 * Returns the token of this user's servers: `DRAGOMAN_TOKEN`, else that of the user's file; undefined if there is none.
 *
 * @throws DragomanError ADDRESS_UNTRUSTED if others can read the file
 */
export function userToken(): string | undefined {
  const own = process.env["DRAGOMAN_TOKEN"]?.trim();
  if (own) return own;
  const path = join(stateDirectory(), "token");
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new DragomanError("ADDRESS_UNTRUSTED", `the token in ${path} cannot be read: ${(error as Error).message}`);
  }
  try {
    const found = fstatSync(file);
    if (!found.isFile() || (found.mode & 0o077) !== 0 || found.uid !== euid()) {
      throw new DragomanError("ADDRESS_UNTRUSTED", `${path} can be read by others; remove it, and a new token is made`);
    }
    const content = Buffer.alloc(512);
    return content.toString("utf8", 0, readSync(file, content)).trim() || undefined;
  } finally {
    closeSync(file);
  }
}

/** What an address comes to. */
export interface Place {
  /** For grpc-js. */
  target: string;
  /** Whether it is on this machine. */
  isLocal: boolean;
  /** Of a Unix socket. */
  path?: string;
  /** Of a TCP address. */
  port?: number;
}

/**
 * Returns what `unix:/path` or `host:port` comes to.
 *
 * @throws DragomanError ADDRESS_UNTRUSTED if it is no address
 */
export function parseAddress(address: string): Place {
  if (address.startsWith("unix:")) {
    const path = address.slice("unix:".length).replace(/^\/\/(?=\/)/, "");
    if (!isAbsolute(path) || path.startsWith("//")) {
      throw new DragomanError("ADDRESS_UNTRUSTED", `"${address}": the path of a Unix socket is absolute`);
    }
    return { target: `unix:${path}`, isLocal: true, path };
  }
  const parts = /^(?:\[([0-9A-Fa-f:.]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(address);
  const host = parts?.[1] ?? parts?.[2] ?? "";
  const port = Number(parts?.[3] ?? -1);
  if (host === "" || port < 0 || port > 65_535 || (parts?.[1] !== undefined && isIP(host) !== 6)) {
    throw new DragomanError("ADDRESS_UNTRUSTED", `"${address}" is no address; use unix:/path or host:port`);
  }
  return { target: `dns:${address}`, isLocal: isLoopback(host), port };
}

/** Returns whether a host is this machine. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}

/**
 * Refuses a place of this machine where another user listens, or could: prompts and tokens travel there in the clear.
 *
 * @throws DragomanError ADDRESS_UNTRUSTED
 */
export function checkPlace(place: Place): void {
  if (place.path !== undefined) checkSocket(place.path);
  else if (place.port !== undefined) {
    const owner = listenerOn(place.port);
    if (owner !== undefined && !isTrusted(owner)) {
      throw new DragomanError(
        "ADDRESS_UNTRUSTED",
        `port ${place.port}: the server there is run by uid ${owner}, not by you (uid ${euid()})`,
      );
    }
  }
}

function checkSocket(path: string): void {
  const directory = statOf(dirname(path));
  if (!directory) return; // nothing is there to be reached
  if ((directory.mode & 0o022) !== 0 || !isTrusted(directory.uid)) {
    throw new DragomanError(
      "ADDRESS_UNTRUSTED",
      `unix:${path}: other users can write to ${dirname(path)} and could put a socket of their own there`,
    );
  }
  const socket = statOf(path, lstatSync);
  if (socket && !isTrusted(socket.uid)) {
    throw new DragomanError(
      "ADDRESS_UNTRUSTED",
      `unix:${path} belongs to uid ${socket.uid}, not to you (uid ${euid()})`,
    );
  }
}

/** Returns the user whose server listens on a TCP port here, a stranger first. Only Linux says. */
function listenerOn(port: number): number | undefined {
  const owners = ["/proc/net/tcp", "/proc/net/tcp6"]
    .flatMap((table) => {
      try {
        return readFileSync(table, "utf8").split("\n");
      } catch {
        return []; // another system
      }
    })
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === LISTENING && Number.parseInt(fields[1]?.split(":")[1] ?? "", 16) === port)
    .map((fields) => Number(fields[7]));
  return owners.find((owner) => !isTrusted(owner)) ?? owners[0];
}

function isTrusted(uid: number): boolean {
  return uid === 0 || uid === euid();
}

function euid(): number {
  return process.geteuid?.() ?? -1;
}

function statOf(path: string, stat: (path: string) => Stats = statSync): Stats | undefined {
  try {
    return stat(path);
  } catch {
    return undefined; // it is not there, or cannot be reached
  }
}
