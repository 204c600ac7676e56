/**
 * A client of Dragoman: of a router, or of one adapter. The messages of the contract are in `@dragoman/client/v1`.
 *
 * Every failed call throws a `DragomanError`; its `reason` is what programs decide by. The failure of an agent is no
 * error but the result of its run.
 */
export { defaultAddress, userToken } from "./address.js";
export { Client, type ClientOptions } from "./client.js";
export { DragomanError, type ErrorDetails, type Reason, type Violation } from "./errors.js";
export type { CallSettings } from "./grpc.js";
export { Run } from "./run.js";
