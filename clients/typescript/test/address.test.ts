import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";

import { defaultAddress, parseAddress, userToken } from "../src/address.js";
import { Client } from "../src/client.js";

function folder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), "address-"));
  t.after(() => rmSync(path, { recursive: true }));
  return path;
}

function environment(t: TestContext, variables: NodeJS.ProcessEnv): void {
  const before = { ...process.env };
  t.after(() => {
    process.env = before;
  });
  for (const [name, value] of Object.entries(variables)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
}

test("addresses", () => {
  assert.deepEqual(parseAddress("unix:/run/a"), { target: "unix:/run/a", isLocal: true, path: "/run/a" });
  assert.deepEqual(parseAddress("unix:///run/a"), { target: "unix:/run/a", isLocal: true, path: "/run/a" });
  assert.deepEqual(parseAddress("127.0.0.1:7777"), { target: "dns:127.0.0.1:7777", isLocal: true, port: 7777 });
  assert.deepEqual(parseAddress("[::1]:1"), { target: "dns:[::1]:1", isLocal: true, port: 1 });
  assert.deepEqual(parseAddress("192.0.2.1:80"), { target: "dns:192.0.2.1:80", isLocal: false, port: 80 });
  for (const wrong of [
    "unix:run/a",
    "unix://host/a",
    "127.0.0.1",
    "127.0.0.1:port",
    "127.0.0.1:700000",
    ":80",
    "[a]:1",
  ]) {
    assert.throws(() => parseAddress(wrong), { reason: "ADDRESS_UNTRUSTED" }, wrong);
  }
});

test("the address of this user's router", (t) => {
  const directory = folder(t);
  environment(t, { DRAGOMAN_ROUTER: undefined, XDG_RUNTIME_DIR: undefined, XDG_STATE_HOME: "/s" });
  assert.equal(defaultAddress(), "unix:/s/dragoman/run/router.sock");
  process.env["XDG_RUNTIME_DIR"] = directory;
  assert.equal(defaultAddress(), `unix:${directory}/dragoman/router.sock`);
  process.env["DRAGOMAN_ROUTER"] = "127.0.0.1:1";
  assert.equal(defaultAddress(), "127.0.0.1:1");
});

test("the token of this user", (t) => {
  const state = folder(t);
  environment(t, { XDG_STATE_HOME: state, DRAGOMAN_TOKEN: undefined });
  assert.equal(userToken(), undefined);
  const path = join(state, "dragoman", "token");
  mkdirSync(join(state, "dragoman"));
  writeFileSync(path, "of-the-file\n", { mode: 0o600 });
  assert.equal(userToken(), "of-the-file");
  chmodSync(path, 0o644);
  assert.throws(userToken, { reason: "ADDRESS_UNTRUSTED" });
  process.env["DRAGOMAN_TOKEN"] = "of-the-variable";
  assert.equal(userToken(), "of-the-variable");
});

test("a socket that others could replace is refused", (t) => {
  const directory = folder(t);
  chmodSync(directory, 0o777);
  assert.throws(() => new Client(`unix:${directory}/s`), { reason: "ADDRESS_UNTRUSTED" });
});

test("nothing is sent to another machine in the clear", () => {
  assert.throws(() => new Client("192.0.2.1:80", { token: "secret" }), {
    reason: "ADDRESS_UNTRUSTED",
    message: /in the clear/,
  });
});
