//! Generates the types of the contract and the descriptors for reflection, without a protoc.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let files = ["dragoman/v1/adapter.proto", "dragoman/v1/event.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={}", root.join(file).display());
    }
    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;
    let descriptors = compiler.file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .btree_map(".") // maps in one order make equal requests equal bytes
        .build_transport(false)
        .generate_default_stubs(true) // an adapter on the stubs alone serves what it has
        .compile_fds(descriptors)?;
    Ok(())
}
