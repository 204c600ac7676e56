import { clone } from "@bufbuild/protobuf";
import { AgentEventSchema, type AgentEvent } from "@dragoman/client/v1";

import { cutText } from "./fields.js";
import { MASK, RedactedStream, type Redactor } from "./redact/redactor.js";

const LONGEST_PIECE = 256 << 10;

/** A text that comes in pieces. */
interface Item {
  stream: RedactedStream;
  offset: number;
  /** For what is around the text. */
  last: AgentEvent;
}

/** A part of an item, or the word that it is complete. */
interface Piece {
  key: string;
  /** Absent: the item is complete. */
  text?: string;
  /** Whether it replaces all pieces before. */
  isWhole: boolean;
}

/**
 * The texts of a run that come in pieces. A secret may begin in one piece and end in another, so each text goes
 * through a redactor of its own, which holds back what may become one; offsets are counted in what comes out.
 */
export class Texts {
  readonly #redactor: Redactor;
  readonly #items = new Map<string, Item>();

  constructor(redactor: Redactor) {
    this.#redactor = redactor;
  }

  /** Returns what is to be written of an event. */
  take(event: AgentEvent): AgentEvent[] {
    const piece = pieceOf(event);
    if (!piece) {
      return event.body.case === "toolResult" ? [...this.#endCall(event.body.value.toolCallId), event] : [event];
    }
    if (piece.text === undefined) return this.#end(piece.key);
    if (piece.isWhole) {
      const offset = Buffer.byteLength(piece.text);
      this.#items.set(piece.key, { stream: new RedactedStream(this.#redactor), offset, last: event });
      return [event];
    }
    let item = this.#items.get(piece.key);
    if (!item)
      this.#items.set(piece.key, (item = { stream: new RedactedStream(this.#redactor), offset: 0, last: event }));
    item.last = event;
    const { shown, isPlain } = item.stream.feed(piece.text);
    outputOf(event)?.replace(""); // it is in the stream; half a character of it could not be copied
    if (event.native && !isPlain) event.native.text = MASK; // no search finds half a secret in it
    return written(item, shown);
  }

  /** Returns whatever is held back. */
  flush(): AgentEvent[] {
    return [...this.#items.keys()].flatMap((key) => this.#end(key));
  }

  #end(key: string): AgentEvent[] {
    const item = this.#items.get(key);
    this.#items.delete(key);
    return item ? written(item, item.stream.flush()) : [];
  }

  #endCall(id: string): AgentEvent[] {
    return [...this.#items.keys()]
      .filter((key) => key.startsWith("output ") && key.endsWith(` ${id}`))
      .flatMap((key) => this.#end(key));
  }
}

function pieceOf({ body }: AgentEvent): Piece | undefined {
  if (body.case === "text" || body.case === "thinking") {
    const { itemId, content } = body.value;
    const key = `${body.case} ${itemId}`;
    return content.case === undefined
      ? { key, isWhole: false }
      : { key, text: content.value, isWhole: content.case === "whole" };
  }
  if (body.case === "toolOutput") {
    const { stream, toolCallId, text } = body.value;
    return { key: `output ${stream} ${toolCallId}`, text, isWhole: false };
  }
  return undefined;
}

/** Returns a text that is decided, in pieces that events can hold. */
function written(item: Item, text: string): AgentEvent[] {
  const events: AgentEvent[] = [];
  for (let rest = text.toWellFormed(); rest !== "";) {
    const part = cutText(rest, LONGEST_PIECE);
    rest = rest.slice(part.length);
    const event = clone(AgentEventSchema, item.last);
    const { body } = event;
    if (body.case === "toolOutput") {
      Object.assign(body.value, { offset: BigInt(item.offset), text: part, raw: new Uint8Array() });
    } else if (body.case === "text" || body.case === "thinking") {
      body.value.offset = BigInt(item.offset);
      body.value.content = { case: "delta", value: part };
    }
    item.offset += Buffer.byteLength(part);
    item.last.native = undefined; // one frame goes with one event
    events.push(event);
  }
  return events;
}

/** The text of an event that counts as output; with what replaces it. */
export function outputOf({ body }: AgentEvent): { text: string; replace: (text: string) => void } | undefined {
  if (body.case === "text" || body.case === "thinking") {
    const { content } = body.value;
    return (
      content.case && {
        text: content.value,
        replace: (text) => {
          content.value = text;
        },
      }
    );
  }
  if (body.case === "toolOutput" || body.case === "log") {
    const { value } = body;
    return { text: value.text, replace: (text) => Object.assign(value, { text, raw: new Uint8Array() }) };
  }
  return undefined;
}
