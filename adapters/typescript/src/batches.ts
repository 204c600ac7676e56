import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { AgentEventSchema, BatchSchema } from "@dragoman/client/v1";

import type { Entry } from "./eventlog.js";

const MOST = 1024;
const LARGEST = 256 << 10;
const SPARE = 64; // bytes around the events of a batch
const ALONE = new Set<Entry["kind"]>([
  undefined,
  "started",
  "session",
  "state",
  "inputRequest",
  "inputResolved",
  "inputAccepted",
  "inputDropped",
  "runUpdated",
  "attemptEnded",
  "gap",
  "result",
  "batch",
]);

/** Returns events as messages, with neighbours that may share a batch as one. */
export function batched(events: Entry[]): Uint8Array[] {
  const messages: Uint8Array[] = [];
  let group: Entry[] = [];
  let size = 0;
  const flush = () => {
    if (group.length > 0) messages.push(messageOf(group));
    group = [];
    size = 0;
  };
  for (const event of events) {
    const own = event.bytes.length + 8;
    const isAlone = event.sequence === 0n || ALONE.has(event.kind) || own > LARGEST / 2;
    const isNext = event.sequence === (group.at(-1)?.sequence ?? -1n) + 1n;
    if (isAlone || !isNext || group.length === MOST || size + own > LARGEST - SPARE) flush();
    group.push(event);
    size += own;
    if (isAlone) flush();
  }
  flush();
  return messages;
}

function messageOf(group: Entry[]): Uint8Array {
  const [first] = group;
  if (group.length === 1) return (first as Entry).bytes;
  const { sequence, batch } = AgentEventSchema.field;
  const writer = new BinaryWriter().tag(sequence.number, WireType.Bit64).fixed64((group.at(-1) as Entry).sequence);
  writer.tag(batch.number, WireType.LengthDelimited).fork();
  for (const { bytes } of group) writer.tag(BatchSchema.field.events.number, WireType.LengthDelimited).bytes(bytes);
  return writer.join().finish();
}
