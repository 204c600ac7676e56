/**
 * Serves an agent as an AdapterService of Dragoman: what is common to all adapters, so that an author writes a
 * description and a function.
 *
 * It keeps the runs and their events, and serves Execute, Attach, Cancel, Respond, health and reflection; redacts
 * secrets, keeps limits, checks requests, ends orphaned runs, and drains on SIGTERM. `run.exec` runs a program and
 * ends all that it starts. The messages of the contract are in `@dragoman/client/v1`.
 */
export { features, type Adapter, type Log } from "./adapter.js";
export { Failure } from "./failure.js";
export type { Question, Resolution } from "./inputs.js";
export type { Command, Exit, Line, Program } from "./process.js";
export type { EventBody } from "./recorder.js";
export type { Decision, EventExtras, Run } from "./run.js";
export { serve, toStandardError } from "./serve.js";
export { Server } from "./server.js";
export type { SessionChoice } from "./sessions.js";
export { RunStopped } from "./stop.js";
