// Runs a command through a router, and prints what it prints.
import { Client } from "@dragoman/client";
import { Outcome } from "@dragoman/client/v1";

const client = new Client(); // DRAGOMAN_ROUTER, else this user's router
const run = client.execute({
  adapter: "process",
  task: { case: "prompt", value: "hello" },
  workspace: { cwd: "/tmp" },
  config: { command: "cat" },
});
for await (const event of run) {
  if (event.body.case === "log") console.log(event.body.value.text);
}
console.log(Outcome[run.result!.outcome]);
client.close();
