//! Compiles the protobuf of the container storage interface, without a `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO: &str = "proto/csi.proto";
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        // Comments of the protobuf are written for people, and rustdoc takes them for Markdown.
        .disable_comments(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
