/** Messages by their descriptors: what holds for every field, whichever message it is in. */
import type { DescField, DescMessage, MessageShape } from "@bufbuild/protobuf";
import type { JsonValue } from "@dragoman/client/v1";

/** A message as the object that it is. */
export type Fields = Record<string, unknown>;

/** Calls a function for each field that is set, with its value and with what replaces the value. */
export function eachField(
  schema: DescMessage,
  message: Fields,
  visit: (field: DescField, value: unknown, replace: (value: unknown) => void) => void,
): void {
  for (const member of schema.members) {
    const value = message[member.localName];
    if (member.kind === "field") {
      if (isSet(member, value))
        visit(member, value, (next) => {
          message[member.localName] = next;
        });
      continue;
    }
    const chosen = value as { case?: string; value?: unknown };
    const field = member.fields.find(({ localName }) => localName === chosen.case);
    if (field)
      visit(field, chosen.value, (next) => {
        chosen.value = next;
      });
  }
}

function isSet(field: DescField, value: unknown): boolean {
  if (value === undefined) return false;
  if (field.fieldKind === "list") return (value as unknown[]).length > 0;
  if (field.fieldKind === "map") return Object.keys(value as object).length > 0;
  return true;
}

/** Returns whether a field holds JSON: a `google.protobuf.Struct`, which is a plain object here. */
export function isJson(field: { message?: DescMessage | undefined }): boolean {
  return field.message?.typeName === "google.protobuf.Struct";
}

/** Replaces every text of JSON, in place; keys are left as they are. */
export function mapJson(value: JsonValue, map: (text: string) => string): JsonValue {
  if (typeof value === "string") return map(value);
  if (Array.isArray(value)) return value.map((item) => mapJson(item, map));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, mapJson(item, map)]));
}

/** What is done with the texts of a message. */
export interface TextMap {
  text: (text: string, field: DescField) => string;
  bytes: (bytes: Uint8Array, field: DescField) => Uint8Array;
  /** Messages that are left as they are, by their type. */
  skips: string;
}

/** Replaces every text and every bytes of a message, in place. */
export function mapTexts(schema: DescMessage, message: Fields, map: TextMap): void {
  if (schema.typeName === map.skips) return;
  eachField(schema, message, (field, value, replace) => {
    const one = (item: unknown): unknown => {
      if (typeof item === "string") return map.text(item, field);
      if (item instanceof Uint8Array) return map.bytes(item, field);
      if (isJson(field)) return mapJson(item as JsonValue, (text) => map.text(text, field));
      if (field.message) mapTexts(field.message, item as Fields, map);
      return item;
    };
    if (field.fieldKind === "list") replace((value as unknown[]).map(one));
    else if (field.fieldKind === "map")
      replace(Object.fromEntries(Object.entries(value as object).map(([key, item]) => [key, one(item)])));
    else replace(one(value));
  });
}

/** Returns a copy of a message without half characters such as `\ud83d`, which no message can hold. */
export function wellFormed<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): MessageShape<Desc> {
  const copy = structuredClone(message); // what protobuf-es clones must be well-formed already
  mapTexts(schema, copy as Fields, { text: (text) => text.toWellFormed(), bytes: (bytes) => bytes, skips: "" });
  return copy;
}

/** Returns at most so many bytes of a text, which end with a character. */
export function cutText(text: string, most: number): string {
  if (text.length <= most / 3 || Buffer.byteLength(text) <= most) return text;
  const data = Buffer.from(text);
  let end = Math.max(0, most);
  while (end > 0 && ((data[end] as number) & 0xc0) === 0x80) end -= 1;
  return data.toString("utf8", 0, end);
}
