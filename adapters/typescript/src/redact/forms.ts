const SHORTEST_SECRET = 6; // characters; a shorter value stands in too many words by chance
const SHORTEST_LINE = 16; // of a line of a secret that counts as a secret of its own
const LONGEST_ENCODED = 4096; // a longer secret is not looked for in hexadecimal and the like
const UNESCAPED = "-._~";

/** Returns the forms in which a secret is looked for; none if it is too short. */
export function formsOf(secret: string): string[] {
  const values = [secret, secret.trim()];
  const lines = secret.split("\n").map((line) => line.trim());
  if (lines.length > 1) {
    // output arrives line by line
    values.push(
      ...lines.filter((line) => line.length >= SHORTEST_LINE && !line.includes(" ") && !line.startsWith("-----")),
    );
  }
  return values.flatMap(encodings);
}

/** Returns whether a form is long enough to be looked for. */
export function isLongEnough(form: string): boolean {
  return form.trim().length >= SHORTEST_SECRET;
}

function encodings(value: string): string[] {
  const once = jsonEscapes(value);
  const forms = [value, ...once, ...once.flatMap(jsonEscapes)];
  const data = Buffer.from(value);
  if (data.length > LONGEST_ENCODED) return forms;
  const hex = data.toString("hex");
  return [...forms, hex, hex.toUpperCase(), ...quotations(value), ...percentForms(data), ...base64Forms(data)];
}

function jsonEscapes(value: string): string[] {
  const plain = JSON.stringify(value).slice(1, -1);
  const escape = (character: string) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return [plain, plain.replace(/[<>&\u2028\u2029]/g, escape), plain.replace(/[\u0080-\uffff]/g, escape)];
}

/** Returns a value as shells, Python and HTML quote it. */
function quotations(value: string): string[] {
  const backslashed = (special: string) => [...value].map((c) => (special.includes(c) ? `\\${c}` : c)).join("");
  const inHtml = (double: string, single: string) =>
    value
      .replaceAll("&", "&amp;")
      .replaceAll("<", "&lt;")
      .replaceAll(">", "&gt;")
      .replaceAll('"', double)
      .replaceAll("'", single);
  return [
    value.replaceAll("'", "'\\''"),
    value.replaceAll("'", "'\"'\"'"),
    backslashed('"\\$`'),
    backslashed(" \t'\"\\|&;()<>!{}*[]?^$`#~,"),
    backslashed("'\\"),
    inHtml("&#34;", "&#39;"),
    inHtml("&quot;", "&apos;"),
    inHtml("&quot;", "&#x27;"),
    JSON.stringify(value).slice(1, -1).replaceAll("/", "\\/"),
  ];
}

function percentForms(data: Buffer): string[] {
  return ["", "/", "$&+:=@"].flatMap((more) =>
    [false, true].flatMap((isLower) => {
      const form = [...data]
        .map((byte) => {
          const character = String.fromCharCode(byte);
          if (/[0-9A-Za-z]/.test(character) || (UNESCAPED + more).includes(character)) return character;
          const hex = byte.toString(16).padStart(2, "0");
          return `%${isLower ? hex : hex.toUpperCase()}`;
        })
        .join("");
      return [form, form.replaceAll("%20", "+")];
    }),
  );
}

/** Returns what is the same in base64 wherever the value stands: one form for each of three alignments. */
function base64Forms(data: Buffer): string[] {
  return [0, 1, 2].flatMap((before) => {
    const first = Math.floor((8 * before + 5) / 6);
    const last = Math.floor((8 * (before + data.length)) / 6);
    const core = Buffer.concat([Buffer.alloc(before), data])
      .toString("base64")
      .slice(first, last);
    return [core, core.replaceAll("+", "-").replaceAll("/", "_")];
  });
}
