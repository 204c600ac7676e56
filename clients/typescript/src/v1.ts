/** The messages and services of the contract `dragoman.v1`, as generated; and what makes and converts messages. */
export {
  clone,
  create,
  equals,
  fromBinary,
  fromJson,
  fromJsonString,
  isFieldSet,
  toBinary,
  toJson,
  toJsonString,
} from "@bufbuild/protobuf";
export type { JsonObject, JsonValue, MessageInitShape, MessageShape } from "@bufbuild/protobuf";
export { durationFromMs, durationMs, timestampDate, timestampFromDate, timestampNow } from "@bufbuild/protobuf/wkt";
export type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
export * from "./gen/dragoman/v1/adapter_pb.js";
export * from "./gen/dragoman/v1/event_pb.js";
export * from "./gen/dragoman/v1/router_pb.js";
