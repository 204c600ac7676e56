// An adapter for an agent that asks for permission, as docs/guides/write-an-adapter-typescript.md explains it.
import { createInterface } from "node:readline";

import { features, serve, type Run } from "@dragoman/adapter";
import { Feature, OutputStream, PermissionMode, ToolKind } from "@dragoman/client/v1";

async function run(run: Run) {
  const { exit, program } = run.spawn({ path: run.program });
  if (!program) return exit.result(); // it is not installed, or the run is to stop
  const { stdin, stdout, stderr } = program.process;
  stdin.write(`${run.prompt}\n`);
  let summary = "";
  const frames = async () => {
    for await (const line of createInterface({ input: stdout })) {
      const frame = JSON.parse(line) as { type: string; id: string; tool: string; path: string; text: string };
      if (frame.type === "ask") {
        const subject = { toolCallId: frame.id, toolName: frame.tool, toolKind: ToolKind.EDIT, paths: [frame.path] };
        const { isAllowed } = await run.permit(subject, { title: `May I write ${frame.path}?` });
        stdin.write(isAllowed ? "allow\n" : "reject\n");
      } else {
        await run.text("answer", (summary = frame.text));
        run.done();
      }
    }
  };
  const errors = async () => {
    for await (const text of createInterface({ input: stderr })) run.log({ stream: OutputStream.STDERR, text });
  };
  await Promise.all([frames(), errors(), program.ended]); // what one of them throws ends program and run
  return Object.assign(exit.result(), { summary });
}

await serve({
  describe: {
    adapter: "careful_ts",
    label: "Careful",
    version: "1",
    configSchemaJson:
      '{"type": "object", "additionalProperties": false, "properties": {"command": {"type": "string"}}}',
    capabilities: features(PermissionMode.STRICT, Feature.PROMPT, Feature.WORKSPACE, Feature.PERMISSION_REQUESTS),
  },
  program: "careful",
  run,
});
