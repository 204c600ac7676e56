// An adapter whose agent is in its own process, and performs the steps of the conformance kit: it asks, which a program could not.
import { createHash } from "node:crypto";
import { access, writeFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";

import { Failure, features, serve, type Run } from "@dragoman/adapter";
import { FailureKind, Feature, InputKind, PermissionMode, ToolKind, ToolStatus } from "@dragoman/client/v1";

const MARK = "dragoman-script:\n";
const END = "\n---\n";

async function run(run: Run) {
  const head = run.prompt.startsWith(MARK) ? (run.prompt.slice(MARK.length).split(END)[0] ?? "") : "";
  const rest = run.prompt.split(END).slice(1).join(END);
  let calls = 0;
  let items = 0;
  let item = "";
  const say = async (text: string) => {
    item = "";
    await run.emit({ case: "text", value: { itemId: `item-${++items}`, content: { case: "whole", value: text } } });
  };
  const piece = (text: string) => run.text((item ||= `item-${++items}`), text);
  run.start({ notes: ["performs the steps of its prompt"] });
  for (const line of head.split("\n").filter((step) => step !== "")) {
    run.signal.throwIfAborted();
    const [, name = "", value = ""] = /^([^=]*)=?(.*)$/s.exec(line) ?? [];
    switch (name) {
      case "say":
        await say(value);
        break;
      case "piece":
        await piece(value);
        break;
      case "prompt": {
        const digest = createHash("sha256").update(run.prompt).digest("hex");
        await say(`bytes=${Buffer.byteLength(run.prompt)} sha256=${digest}`);
        break;
      }
      case "echo":
        await say(rest.slice(0, 200));
        break;
      case "env":
        await say(run.request.env[value] ?? "");
        break;
      case "split": {
        const secret = run.request.env[value] ?? "";
        await piece(secret.slice(0, secret.length / 2));
        await piece(secret.slice(secret.length / 2));
        break;
      }
      case "flood":
        for (let i = 0; i < Number(value); i++) await say(String(i).padStart(100, "0"));
        break;
      case "call":
      case "tool":
      case "failing": {
        const id = `call-${++calls}`;
        await run.emit({
          case: "toolCall",
          value: { id, name: value, kind: ToolKind.OTHER, inputJson: "{}", status: ToolStatus.RUNNING },
        });
        const status = name === "failing" ? ToolStatus.FAILED : ToolStatus.COMPLETED;
        if (name !== "call") await run.emit({ case: "toolResult", value: { toolCallId: id, content: "done", status } });
        break;
      }
      case "touch":
        await writeFile(value, "");
        break;
      case "wait":
        while (
          !(await access(value).then(
            () => true,
            () => false,
          ))
        )
          await delay(10, undefined, { signal: run.signal });
        break;
      case "ask": {
        const { isAllowed } = await run.permit(
          { toolName: value, toolKind: ToolKind.EXECUTE },
          { title: `May I use ${value}?` },
        );
        await say(isAllowed ? "allowed" : "rejected");
        break;
      }
      case "write": {
        const { isAllowed } = await run.permit(
          { toolName: "write", toolKind: ToolKind.EDIT },
          { title: "May I write?" },
        );
        if (isAllowed) await writeFile(value, "");
        break;
      }
      case "question": {
        const { answer } = await run.ask({ kind: InputKind.TEXT, title: value });
        await say(`answered ${answer.text}`);
        break;
      }
      case "fail":
        throw new Failure(FailureKind.PROCESS_CRASHED, "scripted", value);
      case "hang":
        await delay(3_600_000, undefined, { signal: run.signal });
        break;
      default:
        throw new Failure(FailureKind.INVALID_CONFIG, "step", `dragoman-script: step '${name}' not supported`);
    }
  }
}

await serve({
  describe: {
    adapter: "scripted",
    label: "Scripted",
    version: "1",
    configSchemaJson: JSON.stringify({ type: "object", additionalProperties: false, properties: {} }),
    capabilities: features(
      PermissionMode.STRICT,
      Feature.PROMPT,
      Feature.TEXT_DELTAS,
      Feature.TOOL_START,
      Feature.PERMISSION_REQUESTS,
      Feature.INPUT_REQUESTS,
    ),
  },
  run,
});
