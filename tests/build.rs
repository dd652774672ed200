//! The repository's root, where tests find its files, as `TENSORLOGIC_ROOT`.
fn main() {
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    println!("cargo:rustc-env=TENSORLOGIC_ROOT={}", std::path::Path::new(&package).parent().unwrap().display());
    println!("cargo:rerun-if-changed=build.rs");
}
