//! Every WGSL file validates alone and translates to SPIR-V and to Metal's language.

use naga::back::{msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::path::Path;

/// Parses, validates and translates one file.
fn check(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let module = naga::front::wgsl::parse_str(&text)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string_with_path(&text, &path.display().to_string())));
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string_with_path(&text, &path.display().to_string())));
    spv::write_vec(&module, &info, &spv::Options { lang_version: (1, 3), ..Default::default() }, None)
        .unwrap_or_else(|e| panic!("{}: SPIR-V: {e}", path.display()));
    let options = msl::Options { lang_version: (3, 0), fake_missing_bindings: true, ..Default::default() };
    let (source, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|e| panic!("{}: MSL: {e}", path.display()));
    assert!(source.contains("metal"), "{}", path.display());
}

#[test]
fn every_kernel_translates() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "wgsl") {
            check(&path);
            seen += 1;
        }
    }
    assert!(seen >= 6, "only {seen} kernels were found");
}
