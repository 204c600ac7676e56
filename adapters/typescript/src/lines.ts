import type { OutputStream } from "@dragoman/client/v1";
import { isUtf8 } from "node:buffer";

const LONGEST_LINE = 16 << 20;
const NEWLINE = 0x0a;

/** A line of a program's output. */
export interface Line {
  stream: OutputStream;
  /** Without its newline; bytes that are not UTF-8 are replaced by U+FFFD. */
  text: string;
  /** The same as it came; empty if it is valid UTF-8. */
  raw: Uint8Array;
  /** Whether the stream ended without a newline after it. */
  isUnterminated: boolean;
  /** Bytes that were cut off a line that is too long. */
  cutBytes: number;
}

/** Cuts a stream into lines. */
export class Lines {
  readonly #stream: OutputStream;
  #pending: Buffer[] = [];
  #size = 0;
  #cutBytes = 0;

  constructor(stream: OutputStream) {
    this.#stream = stream;
  }

  /** Takes the next bytes, and returns the lines that they complete. */
  feed(data: Buffer): Line[] {
    const lines: Line[] = [];
    let at = 0;
    for (let end = data.indexOf(NEWLINE); end >= 0; end = data.indexOf(NEWLINE, at)) {
      this.#extend(data.subarray(at, end));
      lines.push(this.#take(false));
      at = end + 1;
    }
    this.#extend(data.subarray(at));
    return lines;
  }

  /** Returns what stands after the last newline. */
  end(shorten: (text: string) => string): Line[] {
    if (this.#size === 0 && this.#cutBytes === 0) return [];
    const line = this.#take(true);
    const text = shorten(line.text);
    return text === line.text ? [line] : text === "" ? [] : [{ ...line, text, raw: new Uint8Array() }];
  }

  #extend(part: Buffer): void {
    const kept = part.subarray(0, LONGEST_LINE - this.#size);
    if (kept.length > 0) this.#pending.push(kept);
    this.#size += kept.length;
    this.#cutBytes += part.length - kept.length;
  }

  #take(isUnterminated: boolean): Line {
    const whole = this.#pending.length === 1 ? (this.#pending[0] as Buffer) : Buffer.concat(this.#pending);
    const data = !isUnterminated && whole.at(-1) === 0x0d ? whole.subarray(0, -1) : whole;
    const raw = isUtf8(data) ? new Uint8Array() : Uint8Array.from(data);
    const line = { stream: this.#stream, text: data.toString(), raw, isUnterminated, cutBytes: this.#cutBytes };
    this.#pending = [];
    this.#size = this.#cutBytes = 0;
    return line;
  }
}
