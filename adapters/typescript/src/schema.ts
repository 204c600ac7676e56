import type { Violation } from "@dragoman/client";
import type { JsonObject } from "@dragoman/client/v1";
import { Ajv2020, type ErrorObject, type ValidateFunction } from "ajv/dist/2020.js";

const SHOWN_KEY = 64;

/** The JSON Schema of an adapter's settings. */
export class Schema {
  readonly #validate: ValidateFunction;
  readonly #known: string[];

  /**
   * @param text the schema; empty: it allows anything
   * @throws Error if it is no schema
   */
  constructor(text: string) {
    const { $schema: _dialect, ...schema } = (text === "" ? {} : JSON.parse(text)) as JsonObject;
    this.#validate = new Ajv2020({ allErrors: true, strict: false }).compile(schema);
    this.#known = Object.keys((schema["properties"] ?? {}) as object).sort();
  }

  /** Returns what is wrong with settings, in the order of paths. */
  check(settings: JsonObject): Violation[] {
    if (this.#validate(settings)) return [];
    const wrong = (this.#validate.errors ?? []).map((error) => ({
      field: pathOf(error),
      description: this.#describe(error),
    }));
    return wrong.sort((a, b) => (a.field < b.field ? -1 : 1));
  }

  #describe(error: ErrorObject): string {
    if (error.keyword === "additionalProperties") return `is not known; known are: ${this.#known.join(", ")}`;
    if (error.keyword === "required") return "is required";
    if (error.keyword === "enum") return `must be one of ${JSON.stringify(error.params["allowedValues"])}`;
    return error.message ?? "is not valid";
  }
}

function pathOf({ instancePath, params }: ErrorObject): string {
  const parts = instancePath
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  const more = params["additionalProperty"] ?? params["missingProperty"];
  if (typeof more === "string") parts.push(more);
  return parts.reduce((path, part) => {
    if (/^\d+$/.test(part)) return `${path}[${part}]`;
    return /^[A-Za-z_][\w-]{0,63}$/.test(part)
      ? `${path}.${part}`
      : `${path}[${JSON.stringify(part.slice(0, SHOWN_KEY))}]`;
  }, "config");
}
