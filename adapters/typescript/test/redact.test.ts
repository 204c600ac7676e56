import assert from "node:assert/strict";
import { test } from "node:test";

import { create, ExecuteRequestSchema } from "@dragoman/client/v1";

import { isCallerSecret, kindOf } from "../src/redact/names.js";
import { MASK, RedactedStream, Redactor } from "../src/redact/redactor.js";
import { secretsOf } from "../src/redact/sources.js";

const SECRET = 'hunter2-"very" s€cret/xyz';

function inPieces(text: string, ...cuts: number[]): string {
  const stream = new RedactedStream(new Redactor([SECRET]));
  const ends = [...cuts, text.length];
  const shown = ends.map((end, i) => stream.feed(text.slice(i === 0 ? 0 : ends[i - 1], end)).shown);
  return shown.join("") + stream.flush();
}

test("a secret is found in every form", () => {
  const redactor = new Redactor([SECRET]);
  const data = Buffer.from(SECRET);
  const forms = [
    SECRET,
    JSON.stringify(SECRET),
    JSON.stringify(JSON.stringify(SECRET)),
    data.toString("hex"),
    encodeURIComponent(SECRET),
    `${SECRET.slice(0, 8)}\u001b[31m${SECRET.slice(8)}`,
    `${SECRET.slice(0, 8)}\u200b${SECRET.slice(8)}`,
  ];
  for (const form of forms) {
    const shown = redactor.text(`before ${form} after`);
    assert.ok(shown.includes(MASK), form);
    assert.ok(!shown.includes("hunter2") && !shown.includes("cret"), shown);
    assert.ok(shown.startsWith("before ") && shown.endsWith(" after"), shown);
  }
  for (const before of ["", "a", "ab"]) {
    const encoded = Buffer.concat([Buffer.from(before), data, Buffer.from("tail")]).toString("base64");
    assert.ok(redactor.text(encoded).includes(MASK), encoded);
  }
});

test("a secret is found wherever a text is cut", () => {
  const text = `It is ${SECRET}, and again ${SECRET}!`;
  const whole = new Redactor([SECRET]).text(text);
  assert.equal(whole, `It is ${MASK}, and again ${MASK}!`);
  for (let first = 0; first <= text.length; first++) {
    for (let second = first; second <= text.length; second += 3) assert.equal(inPieces(text, first, second), whole);
  }
});

test("what is no secret is not held back for long", () => {
  const stream = new RedactedStream(new Redactor([SECRET]));
  assert.equal(stream.feed("nothing to see").shown, "nothing to see");
  assert.equal(stream.feed("here h").shown, "here ");
  assert.equal(stream.feed("i").shown, "hi");
});

test("a character that is cut in two is put together", () => {
  const stream = new RedactedStream(new Redactor([]));
  const [first = "", second = ""] = "🦀".split("");
  assert.equal(stream.feed(`a${first}`).shown, "a");
  assert.equal(stream.feed(second).shown, "🦀");
});

test("overlapping secrets leave nothing of either", () => {
  assert.equal(new Redactor(["abcdefgh", "efghijkl"]).text("xabcdefghijkly"), `x${MASK}y`);
});

test("names say what is secret", () => {
  for (const name of ["API_KEY", "apiKey", "GITHUB_TOKEN", "password", "AuthToken"])
    assert.equal(kindOf(name), "secret", name);
  for (const name of ["KEY_FILE", "TOKENIZER", "keyboard", "PUBLIC_KEY", "TOKEN_URL", "HOME"])
    assert.equal(kindOf(name), "plain", name);
  for (const name of ["MAX_TOKENS", "tokenCount"]) assert.equal(kindOf(name), "counter", name);
  assert.equal(isCallerSecret("DSN", "postgres://x"), true);
  assert.equal(isCallerSecret("LANG", "C.UTF-8"), false);
  assert.equal(isCallerSecret("SOMETHING", "aB3dE6gH9jK2mN5pQ8sT"), true);
});

test("the secrets of a request", () => {
  const request = create(ExecuteRequestSchema, {
    authToken: "word",
    env: { API_TOKEN: "env-secret-1", LANG: "C.UTF-8", HEADER: "Bearer bearer-secret-2" },
    config: {
      args: ["--token", "arg-secret-3", "--verbose"],
      nested: { password: "nested-secret-4" },
      env: { MY_PASS: "config-secret-5" },
    },
    apiUrl: "https://user:url-secret-6@example.com/?key=query-secret-7",
  });
  const secrets = secretsOf(request);
  for (const secret of [
    "word",
    "env-secret-1",
    "arg-secret-3",
    "nested-secret-4",
    "config-secret-5",
    "url-secret-6",
    "query-secret-7",
  ]) {
    assert.ok(secrets.includes(secret), secret);
  }
  assert.ok(!secrets.includes("C.UTF-8") && !secrets.includes("--verbose"));
});
