//! The contract as data.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};

/// The descriptors of the contract, with its comments.
pub const FILES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(FILES).expect("what build.rs has written"));

/// The full name of the service.
pub const SERVICE: &str = "dragoman.v1.AdapterService";

/// Returns whether an RPC is one of the contract.
pub fn has_method(name: &str) -> bool {
    let service = POOL.get_service_by_name(SERVICE);
    service.is_some_and(|service| service.methods().any(|method| method.name() == name))
}

/// Returns a message as one whose fields can be listed. `name` is its type's in the contract.
pub fn dynamic<M: Message>(message: &M, name: &str) -> DynamicMessage {
    let descriptor = POOL.get_message_by_name(&format!("dragoman.v1.{name}")).expect("a message of the contract");
    let mut dynamic = DynamicMessage::new(descriptor);
    dynamic.transcode_from(message).expect("it is that message");
    dynamic
}
