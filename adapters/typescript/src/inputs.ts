import { clone, create, equals, toJsonString } from "@bufbuild/protobuf";
import { DragomanError } from "@dragoman/client";
import {
  AgentEventSchema,
  EventOrigin,
  InputAnswerSchema,
  InputKind,
  InputOptionKind,
  InputRequestSchema,
  InputResolution,
  durationMs,
  timestampFromDate,
  type AgentEvent,
  type Duration,
  type InputAnswer,
  type InputRequest,
  type MessageInitShape,
} from "@dragoman/client/v1";

import { wellFormed } from "./fields.js";
import { MASK } from "./redact/redactor.js";

const DEFAULT_TIMEOUT_MS = 600_000;
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const REJECTING = [InputOptionKind.REJECT_ONCE, InputOptionKind.REJECT_ALWAYS];

/** An input request, as an adapter makes it; `id`, `expiresAt` and `defaultAnswer` are filled in. */
export type Question = MessageInitShape<typeof InputRequestSchema>;

/** How an input request ended. */
export interface Resolution {
  how: InputResolution;
  /** Empty if it was dropped. */
  answer: InputAnswer;
  /** Where `input_resolved` stands. */
  sequence: bigint;
}

interface Open {
  /** As it was shown: redacted. */
  request: InputRequest;
  /** Whether a secret is hidden in the input that the answer may change. */
  hidesInput: boolean;
  resolve: (resolution: Resolution) => void;
  timer: NodeJS.Timeout;
}

/** What the questions need of their run. */
export interface AskingRun {
  readonly isOver: boolean;
  /** Writes an event, and returns it as it was written. */
  write: (event: AgentEvent) => AgentEvent;
  /** Says whether the agent waits for an answer. */
  waits: (isWaiting: boolean) => void;
}

/** A run's questions: asked and answered once, expired to their default, repeated to readers that attach. */
export class Inputs {
  readonly #run: AskingRun;
  readonly #timeoutMs: number;
  readonly #open = new Map<string, Open>();
  readonly #resolved = new Map<string, Resolution>();

  constructor(run: AskingRun, timeout: Duration | undefined) {
    this.#run = run;
    this.#timeoutMs = timeout ? durationMs(timeout) : DEFAULT_TIMEOUT_MS;
  }

  /** The open questions, for a reader that attaches. */
  get pending(): InputRequest[] {
    return [...this.#open.values()].map(({ request }) => request);
  }

  /** Asks, and waits for the end of the question. */
  ask(question: Question): Promise<Resolution> {
    const request = wellFormed(InputRequestSchema, create(InputRequestSchema, question));
    request.id ||= `input-${this.#open.size + this.#resolved.size + 1}`;
    if (this.#open.has(request.id) || this.#resolved.has(request.id))
      throw new Error(`the request ID ${request.id} is not unique`);
    request.expiresAt = timestampFromDate(new Date(Math.min(Date.now() + this.#timeoutMs, 8.64e15)));
    request.defaultAnswer ??= defaultAnswer(request);
    const event = create(AgentEventSchema, {
      body: { case: "inputRequest", value: request },
      origin: EventOrigin.AGENT,
    });
    const editable = request.editableInputJson;
    const shown = this.#run.write(event).body.value as InputRequest;
    const hidesInput = shown.editableInputJson !== editable;
    return new Promise((resolve) => {
      const timer = setTimeout(
        () => this.#end(shown.id, InputResolution.EXPIRED, shown.defaultAnswer),
        Math.min(this.#timeoutMs, LONGEST_TIMER_MS),
      );
      this.#open.set(shown.id, { request: shown, hidesInput, resolve, timer });
      if (this.#open.size === 1) this.#run.waits(true);
    });
  }

  /**
   * Answers a question.
   *
   * @returns the sequence of `input_resolved`
   * @throws DragomanError there is no such question, it was answered otherwise or expired, or the answer does not fit
   */
  answer(id: string, answer: InputAnswer, responder: string): bigint {
    const open = this.#open.get(id);
    if (!open) return this.#answerAgain(id, answer);
    checkAnswer(open.request, answer, open.hidesInput);
    return this.#end(id, InputResolution.ANSWERED, answer, responder);
  }

  #answerAgain(id: string, answer: InputAnswer): bigint {
    const before = this.#resolved.get(id);
    if (!before) throw new DragomanError("REQUEST_NOT_FOUND", `the run has no request ${JSON.stringify(id)}`);
    if (before.how === InputResolution.EXPIRED)
      throw new DragomanError("REQUEST_EXPIRED", "the request has expired; its default was taken");
    if (before.how === InputResolution.DROPPED) {
      throw this.#run.isOver
        ? new DragomanError("RUN_FINISHED", "the run is over, and the request with it")
        : new DragomanError("REQUEST_EXPIRED", "the agent no longer waits for an answer to this request");
    }
    if (equals(InputAnswerSchema, before.answer, answer)) return before.sequence;
    throw new DragomanError("ALREADY_RESOLVED", "the request was answered otherwise", {
      metadata: { answer: toJsonString(InputAnswerSchema, before.answer) },
    });
  }

  /** The run is over: no answers are awaited. */
  dropAll(): void {
    for (const id of this.#open.keys()) this.#end(id, InputResolution.DROPPED, undefined);
  }

  #end(id: string, resolution: InputResolution, answer: InputAnswer | undefined, responder = ""): bigint {
    const open = this.#open.get(id) as Open;
    this.#open.delete(id);
    clearTimeout(open.timer);
    const isByCaller = resolution === InputResolution.ANSWERED;
    const { sequence } = this.#run.write(
      create(AgentEventSchema, {
        body: {
          case: "inputResolved",
          value: { id, resolution, responder, answer: answer && clone(InputAnswerSchema, answer) },
        },
        origin: isByCaller ? EventOrigin.OPERATOR : EventOrigin.ADAPTER,
      }),
    );
    const end = { how: resolution, answer: answer ?? create(InputAnswerSchema), sequence };
    this.#resolved.set(id, end);
    if (this.#open.size === 0) this.#run.waits(false);
    open.resolve(end);
    return sequence;
  }
}

function defaultAnswer(request: InputRequest): InputAnswer {
  const rejecting = request.options.find(({ kind }) => REJECTING.includes(kind));
  return create(InputAnswerSchema, {
    optionIds: rejecting ? [rejecting.id] : [],
    message: "No answer arrived in time.",
  });
}

/** @throws DragomanError INVALID_ANSWER, with the field */
function checkAnswer(request: InputRequest, answer: InputAnswer, hidesInput: boolean): void {
  const known = request.options.map(({ id }) => id);
  const unfit = (field: string, description: string): never => {
    const error = { violations: [{ field: `answer.${field}`, description }] };
    throw new DragomanError("INVALID_ANSWER", `answer.${field}: ${description}`, error);
  };
  if (known.length > 0 && answer.optionIds.length === 0) unfit("option_ids", `choose one of ${known.join(", ")}`);
  if (answer.optionIds.length > 1 && !request.multiple) unfit("option_ids", "choose one option only");
  const strange = answer.optionIds.find((id) => !known.includes(id));
  if (strange !== undefined)
    unfit("option_ids", `${JSON.stringify(strange)} is not an option; choose one of ${known.join(", ")}`);
  if (answer.updatedInputJson !== "") {
    if (request.editableInputJson === "") unfit("updated_input_json", "this request's input cannot be changed");
    if (!isJsonObject(answer.updatedInputJson)) unfit("updated_input_json", "a tool's input is a JSON object");
    // The agent would get the mask in place of the secret.
    if (hidesInput && answer.updatedInputJson.includes(MASK))
      unfit("updated_input_json", `it still has ${MASK} where a secret is hidden; give the value, or leave the input`);
  }
  if (request.kind === InputKind.TEXT && answer.text === "") unfit("text", "must not be empty");
  if (request.kind === InputKind.SCHEMA && parsed(answer.valueJson) === undefined) unfit("value_json", "not JSON");
}

function isJsonObject(text: string): boolean {
  const value = parsed(text);
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // it is none
  }
}
