/** What is done with an event before it is written: its secrets are taken out, and it is made to fit. */
import { toBinary, type DescField, type DescMessage } from "@bufbuild/protobuf";
import { AgentEventSchema, type AgentEvent } from "@dragoman/client/v1";

import { cutText, mapTexts, type Fields, type TextMap } from "./fields.js";
import { MASK, type Redactor } from "./redact/redactor.js";

const MIB = 1 << 20;
const MOST = MIB - 4096; // bytes of an event, with room for what is written after a cut
const LONGEST_TEXT = 2 * MIB; // that is looked through for secrets; no event holds as much
const LONGEST_FRAME = 64 << 10; // of an agent's own frame
const SESSION_HANDLE = "dragoman.v1.SessionHandle"; // comes back as it left

/**
 * Takes the secrets out of every text of an event but IDs and session handles, in place, and half characters out of all.
 *
 * @returns the bytes of texts that no event could hold, which it has cut
 */
export function redactEvent(event: AgentEvent, redactor: Redactor): number {
  let cut = 0;
  let isChanged = false;
  const text = (given: string, field: DescField): string => {
    const value = given.toWellFormed(); // no message can hold half a character, which an agent may print as \ud83d
    if (isId(field.name)) return value;
    let kept = value;
    if (value.length > LONGEST_TEXT / 3 && Buffer.byteLength(value) > LONGEST_TEXT) {
      kept = cutText(value, LONGEST_TEXT);
      kept = kept.slice(0, redactor.undecided(kept)); // no search finds half a secret
      cut += Buffer.byteLength(value) - Buffer.byteLength(kept);
    }
    const shown = redactor.text(kept);
    isChanged ||= shown !== kept;
    return shown;
  };
  const bytes = (value: Uint8Array, field: DescField): Uint8Array => {
    if (redactor.isIdle) return value;
    const before = Buffer.from(value).toString();
    const after = text(before, field);
    return after === before ? value : Buffer.from(after);
  };
  const { body, native } = event;
  const map: TextMap = { text, bytes, skips: SESSION_HANDLE };
  const schema = schemaOfBody(event);
  if (schema) mapTexts(schema, body.value as unknown as Fields, map);
  if (native) {
    native.text = native.text === MASK ? MASK : text(native.text, AgentEventSchema.field.native);
    const kept = cutText(native.text, LONGEST_FRAME);
    native.truncatedBytes += BigInt(Buffer.byteLength(native.text) - Buffer.byteLength(kept));
    native.text = kept;
  }
  event.redacted ||= isChanged;
  return cut;
}

function schemaOfBody(event: AgentEvent): DescMessage | undefined {
  return event.body.case && AgentEventSchema.field[event.body.case].message;
}

function isId(name: string): boolean {
  return name === "id" || name.endsWith("_id") || name.endsWith("_ids");
}

/**
 * Cuts the largest texts of an event until it has at most 1 MiB.
 *
 * @returns the event as it is sent, and the bytes that were cut of a body that does not count them
 */
export function fitEvent(event: AgentEvent, cutBefore: number): { bytes: Uint8Array; cut: number } {
  let cut = cutBefore;
  let bytes = toBinary(AgentEventSchema, event);
  const schema = schemaOfBody(event);
  if (!schema) return { bytes, cut };
  if (event.body.case === "log" && event.body.value.raw.length > MOST / 4) {
    // Both say the same, and a byte that is no UTF-8 takes three in the text.
    const { raw } = event.body.value;
    const kept = raw.subarray(0, MOST / 4);
    cut += raw.length - kept.length;
    event.body.value.raw = kept;
    event.body.value.text = Buffer.from(kept).toString();
    bytes = toBinary(AgentEventSchema, event);
  }
  const body = event.body.value as unknown as Fields;
  for (let excess = bytes.length - MOST; excess > 0; excess = bytes.length - MOST) {
    const removed = cutLargest(schema, body, excess);
    if (removed === 0) break;
    cut += removed;
    bytes = toBinary(AgentEventSchema, event);
  }
  if (cut > 0 && typeof body["truncatedBytes"] === "bigint") {
    body["truncatedBytes"] += BigInt(cut);
    return { bytes: toBinary(AgentEventSchema, event), cut: 0 };
  }
  return { bytes, cut };
}

/** Cuts the longest text of a message, or its longest list, and returns the bytes that it cut. */
function cutLargest(schema: DescMessage, body: Fields, excess: number): number {
  let largest = 0;
  const measure = <T extends string | Uint8Array>(value: T): T => {
    largest = Math.max(largest, Buffer.byteLength(value));
    return value;
  };
  mapTexts(schema, body, { text: measure, bytes: measure, skips: SESSION_HANDLE });
  if (largest < 4096) {
    // it is many small ones
    const list = schema.fields
      .filter(({ fieldKind }) => fieldKind === "list")
      .sort((a, b) => (body[b.localName] as unknown[]).length - (body[a.localName] as unknown[]).length)[0];
    const items = list ? (body[list.localName] as unknown[]) : [];
    items.length = Math.floor(items.length / 2);
    return items.length;
  }
  let removed = 0;
  const shorten = <T extends string | Uint8Array>(value: T, cutTo: (most: number) => T): T => {
    if (removed > 0 || Buffer.byteLength(value) < largest) return value;
    const kept = cutTo(Math.max(0, largest - excess));
    removed = largest - Buffer.byteLength(kept);
    return kept;
  };
  mapTexts(schema, body, {
    text: (value) => shorten(value, (most) => cutText(value, most)),
    bytes: (value) => shorten(value, (most) => value.subarray(0, most)),
    skips: SESSION_HANDLE,
  });
  return removed;
}
