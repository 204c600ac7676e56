// A window on runs: what an agent can do, what it says, its questions, and the same run again after a restart.
import { Client, type Run } from "@dragoman/client";
import { Feature, InputOptionKind, Outcome, type ToolCall } from "@dragoman/client/v1";

const [adapter = "process", prompt = "", settings = "{}"] = process.argv.slice(2);
const config = JSON.parse(settings);
const client = new Client();

// What to offer: an agent that lacks a feature refuses requests that need it.
const [found] = await client.detect({ adapter, config });
const can = new Set(found?.capabilities?.items.map(({ feature }) => feature));
const { models } = can.has(Feature.MODEL_CHOICE) ? await client.adapter.listModels({ adapter }) : { models: [] };
console.log(found?.available ? found.label : `${found?.message} ${found?.hint}`);
console.log(
  `asks: ${can.has(Feature.PERMISSION_REQUESTS)}, images: ${can.has(Feature.IMAGES)}, models: ${models.length}`,
);

const run = client.execute({
  adapter,
  task: { case: "prompt", value: prompt },
  workspace: { cwd: process.cwd() },
  config,
  permissions: { interactive: true }, // there is a person who answers
  orphanAfter: { seconds: 600n }, // it works on while no window is open
});
process.once("SIGINT", () => void run.cancel());
const runId = await run.accepted(); // with the last sequence all that a window stores
await show(run);

// The same run in another window, or after a restart: what came since. A `gap` reports what is no longer retained.
await show(client.attach({ runId, afterSequence: run.lastSequence }));

// Another run that continues the conversation: session: { selector: { case: "resumeRunId", value: runId } }.
client.close();

async function show(run: Run) {
  const calls = new Map<string, ToolCall>();
  for await (const { sequence, body } of run) {
    switch (body.case) {
      case "text":
      case "thinking":
        process.stdout.write(body.value.content.value ?? ""); // a delta continues the text before
        break;
      case "toolCall": {
        // A later event replaces the fields that it sets: what is empty in it stays as it was.
        const set = Object.entries(body.value).filter(([, value]) => value);
        const call = Object.assign(calls.get(body.value.id) ?? {}, Object.fromEntries(set)) as ToolCall;
        calls.set(call.id, call);
        console.log(`\n* ${call.title || call.name} ${call.inputJson}`);
        break;
      }
      case "inputRequest": {
        const { id, title, options } = body.value;
        const once = options.find(({ kind }) => kind === InputOptionKind.ALLOW_ONCE);
        console.log(`\n? ${title} ${options.map(({ label }) => label).join(" / ")}`);
        if (once) await run.respond(id, { optionIds: [once.id] });
        break;
      }
      case "gap":
        console.log(`events ${body.value.fromSequence} to ${body.value.toSequence} are missing`);
        break;
      case "notice":
        console.log(`! ${body.value.message}`);
        break;
      case "result":
        console.log(
          `\n${sequence}: ${Outcome[body.value.outcome]} ${body.value.failure?.message ?? body.value.summary}`,
        );
    }
  }
}
