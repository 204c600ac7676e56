/** What the name of a value says about it. */

const SECRET_WORD = /key|token|secret|password|passwd|passphrase|authorization|cookie/i;
const WORDS = /[A-Z]+[a-z]*|[a-z]+|[0-9]+/g;
const HEX_DIGITS = /^(?:[0-9a-f]{32,}|[0-9A-F]{32,})$/;
const RANDOM = /^[A-Za-z0-9_+=~.-]{20,}$/;
/** A text that is an amount. */
export const NUMERIC = /^\s*[+-]?[0-9][0-9_.,]*\s*$/;

const setOf = (list: string) => new Set(list.split(" "));

// Final words of names that say where a secret is, what it is called or how long it lives, not what it is.
const DESCRIPTORS = setOf(
  "name type kind source path file dir directory url uri endpoint env helper status state provider " +
    "scheme algorithm format version ref var variable",
);
const LIFETIMES = setOf("expires expiry expiration expired ttl");
// Words that contain a secret word by accident of spelling.
const INNOCENT = setOf(
  "keyboard keyword keywords keyframe keyframes keymap keypress keydown keyup keystroke keystrokes " +
    "monkey turkey hockey tokenize tokenized tokenizer tokenization keyring hotkey hotkeys",
);
// Words that make an amount of a token.
const PLURALS = setOf("tokens keys cookies secrets passwords");
const COUNTING = setOf(
  "count counts counter limit max min maximum minimum total num number budget usage used remaining " +
    "size length cost price rate per index",
);
// Words of a caller's own variables that are secret by them.
const CALLER_WORDS = setOf(
  "pass pwd pat auth cred creds credential credentials bearer jwt dsn salt private signature signing",
);

/**
 * Returns what a name says about the value under it; of a counter, numbers are amounts and other text may be secret.
 */
export function kindOf(name: string): "plain" | "counter" | "secret" {
  if (!SECRET_WORD.test(name)) return "plain";
  const parts = wordsOf(name);
  if (parts.length === 0 || DESCRIPTORS.has(parts.at(-1) as string) || parts.some((word) => LIFETIMES.has(word)))
    return "plain";
  const hits = parts.filter((word) => SECRET_WORD.test(word));
  const isAccident = hits.length > 0 && hits.every((word) => INNOCENT.has(word));
  const onlyKeys = hits.every((word) => word === "key" || word === "keys");
  if (isAccident || (onlyKeys && parts.includes("public"))) return "plain";
  return hits.some((word) => PLURALS.has(word)) || parts.some((word) => COUNTING.has(word)) ? "counter" : "secret";
}

function wordsOf(name: string): string[] {
  return [...name.matchAll(WORDS)].flatMap(([word]) => {
    // "APIKey" is two words, and "API" one.
    const upper = /^[A-Z]*/.exec(word)?.[0].length ?? 0;
    const parts = upper > 1 && upper < word.length ? [word.slice(0, upper - 1), word.slice(upper - 1)] : [word];
    return parts.map((part) => part.toLowerCase());
  });
}

/** Returns whether a value is secret by its name. */
export function isSecretEntry(name: string, value: string): boolean {
  const kind = kindOf(name);
  return value !== "" && (kind === "secret" || (kind === "counter" && !NUMERIC.test(value)));
}

/** Returns whether a variable that a caller gave is secret: the documentation sends secrets there. */
export function isCallerSecret(name: string, value: string): boolean {
  if (value === "" || isSecretEntry(name, value)) return value !== "";
  if (wordsOf(name).some((word) => CALLER_WORDS.has(word))) return !NUMERIC.test(value);
  return looksRandom(value);
}

/** Returns whether a name that a caller chose says that its value is secret. */
export function isCallerSecretName(name: string): boolean {
  return kindOf(name) === "secret" || wordsOf(name).some((word) => CALLER_WORDS.has(word));
}

function looksRandom(value: string): boolean {
  if (HEX_DIGITS.test(value)) return value.length !== 40; // the length of a commit's
  return RANDOM.test(value) && /[0-9]/.test(value) && value.toLowerCase() !== value && value.toUpperCase() !== value;
}
