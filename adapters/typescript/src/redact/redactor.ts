import { formsOf, isLongEnough } from "./forms.js";

/** What stands where a secret stood. */
export const MASK = "[redacted]";
/** How many characters of a secret show nothing of it: many an innocent word ends with them. */
export const HARMLESS = 3;

const LONGEST_STATE = 4096;
const ORDER =
  /(?:\x1b\[|\x9b)[0-?]{0,32}[ -/]{0,4}[@-~]?|\x1b\][^\x07\x1b\n]{0,60}(?:\x07|\x1b\\)?|\x1b[ -/]{0,4}[0-~]?/y;

/** A state of an Aho-Corasick automaton: what of a form was read. */
interface State {
  next: Map<number, State>;
  fail: State;
  depth: number;
  /** The length of the longest form that ends here; 0 if none does. */
  form: number;
}

interface Span {
  start: number;
  end: number;
}

/**
 * Takes secrets out of texts. It finds them by their value in many forms, also where control characters or orders to a
 * terminal interrupt them.
 */
export class Redactor {
  readonly #root: State;

  constructor(secrets: string[]) {
    this.#root = newState(0);
    for (const form of secrets.flatMap(formsOf).map(withoutInterruptions)) {
      if (isLongEnough(form)) this.#insert(form);
    }
    this.#link();
  }

  /** Whether there is nothing to look for. */
  get isIdle(): boolean {
    return this.#root.next.size === 0;
  }

  /** Returns a text without secrets. */
  text(text: string): string {
    return this.decide(text, true).shown;
  }

  /** Returns where in a text a secret may begin that its rest would have; the length of the text if none may. */
  undecided(text: string): number {
    return this.#spans(text).cut;
  }

  /** Returns a text redacted up to where nothing that follows can change it, and that place. */
  decide(text: string, isWhole: boolean): { shown: string; cut: number } {
    const { spans, cut: undecided } = this.#spans(text);
    const cut = isWhole ? text.length : undecided;
    let shown = "";
    let at = 0;
    for (const span of spans) {
      if (span.end > cut) break;
      shown += text.slice(at, span.start) + MASK;
      at = span.end;
    }
    return { shown: shown + text.slice(at, cut), cut };
  }

  #insert(form: string): void {
    let state = this.#root;
    for (let i = 0; i < form.length; i++) {
      const unit = form.charCodeAt(i);
      let next = state.next.get(unit);
      if (!next) state.next.set(unit, (next = newState(state.depth + 1, this.#root)));
      state = next;
    }
    state.form = state.depth;
  }

  #link(): void {
    const queue = [this.#root];
    for (let i = 0; i < queue.length; i++) {
      const state = queue[i] as State;
      for (const [unit, child] of state.next) {
        queue.push(child);
        if (state === this.#root) continue;
        child.fail = this.#step(state.fail, unit);
        child.form = Math.max(child.form, child.fail.form);
      }
    }
  }

  #step(state: State, unit: number): State {
    for (let at = state; ; at = at.fail) {
      const next = at.next.get(unit);
      if (next) return next;
      if (at === this.#root) return at;
    }
  }

  /** Returns where secrets are, in order and apart, and from where on a secret may have begun. */
  #spans(text: string): { spans: Span[]; cut: number } {
    if (this.isIdle) return { spans: [], cut: text.length };
    let { spans, cut } = this.#scan(text, false);
    if (text.includes("\x1b") || text.includes("\x9b")) {
      // A secret may be interrupted by an order to the terminal, or stand within one, as in a title.
      const more = this.#scan(text, true);
      spans = [...spans, ...more.spans].sort((a, b) => a.end - b.end).reduce(joined, []);
      cut = Math.min(cut, more.cut);
    }
    // A secret that is found, and may be the beginning of a longer one, is undecided as a whole.
    for (const span of spans.toReversed()) if (span.end > cut) cut = Math.min(cut, span.start);
    return { spans, cut };
  }

  #scan(text: string, skipsOrders: boolean): { spans: Span[]; cut: number } {
    let spans: Span[] = [];
    let positions: number[] = []; // of the units that the present state has read
    let state = this.#root;
    for (let i = 0; i < text.length;) {
      const unit = text.charCodeAt(i);
      if (state === this.#root && unit >= 0x20 && unit < 0x7f && !state.next.has(unit)) {
        i += 1; // as most of a text
        continue;
      }
      const skipped = interruption(text, i, skipsOrders);
      if (skipped > 0) {
        i += skipped;
        continue;
      }
      state = this.#step(state, unit);
      positions.push(i++);
      if (state.form > 0) spans = joined(spans, { start: positions[positions.length - state.form] as number, end: i });
      if (state === this.#root) positions = [];
      else if (positions.length - state.depth > LONGEST_STATE)
        positions = positions.slice(positions.length - state.depth);
    }
    while (state !== this.#root && state.next.size === 0) state = state.fail; // a form that is whole, and no beginning of a longer one
    const isWhole = spans.at(-1)?.end === text.length;
    if (state.depth === 0 || (isWhole && state.depth <= HARMLESS)) return { spans, cut: text.length };
    return { spans, cut: positions[positions.length - state.depth] as number };
  }
}

function newState(depth: number, root?: State): State {
  const state: State = { next: new Map(), fail: undefined as unknown as State, depth, form: 0 };
  state.fail = root ?? state;
  return state;
}

/** Adds a span that ends after all others, and joins those that it overlaps. */
function joined(spans: Span[], next: Span): Span[] {
  let { start } = next;
  while (spans.length > 0 && (spans.at(-1) as Span).end > start) start = Math.min(start, (spans.pop() as Span).start);
  spans.push({ start, end: next.end });
  return spans;
}

/** Returns the length of what is not shown there: a control character, or an order to the terminal; 0 if nothing is. */
function interruption(text: string, at: number, skipsOrders: boolean): number {
  const unit = text.charCodeAt(at);
  if (unit >= 0x20 && unit < 0x7f) return 0;
  if (skipsOrders && (unit === 0x1b || unit === 0x9b)) {
    ORDER.lastIndex = at;
    return ORDER.exec(text)?.[0].length ?? 1;
  }
  const isHidden =
    unit < 0xa0 || (unit >= 0x200b && unit <= 0x200f) || unit === 0x2060 || unit === 0xfeff || unit === 0xfffd;
  return isHidden ? 1 : 0;
}

function withoutInterruptions(text: string): string {
  let shown = "";
  for (let i = 0; i < text.length;) {
    const skipped = interruption(text, i, true);
    if (skipped === 0) shown += text[i];
    i += skipped || 1;
  }
  return shown;
}

/** Redacts a text that comes in pieces. It holds back what may become a secret. */
export class RedactedStream {
  readonly #redactor: Redactor;
  #held = "";

  constructor(redactor: Redactor) {
    this.#redactor = redactor;
  }

  /** Takes the next piece, and returns what is decided. `isPlain` says that no secret begins or ends in the piece. */
  feed(piece: string): { shown: string; isPlain: boolean } {
    const text = this.#held + piece;
    const before = this.#held.length;
    let { shown, cut } = this.#redactor.decide(text, false);
    if (cut === text.length && /[\ud800-\udbff]$/.test(shown)) {
      // half a character
      shown = shown.slice(0, -1);
      cut -= 1;
    }
    this.#held = text.slice(cut);
    return { shown, isPlain: before <= HARMLESS && this.#held.length <= HARMLESS && shown === text.slice(0, cut) };
  }

  /** Returns what was held back: the text is over. */
  flush(): string {
    const shown = this.#redactor.text(this.#held);
    this.#held = "";
    return shown;
  }
}
