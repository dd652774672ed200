//! `kernels`: every kernel as Metal source and SPIR-V, to read or to profile.

use crate::samples::{adapters, files, generated, stands_alone, translate};
use std::path::Path;

/// Writes the kernels' files, and those generated for the sample plans, below `out`. Gives how many there are.
pub fn write(out: &Path, with_msl: bool, with_spirv: bool) -> Result<usize, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let mut texts: Vec<(String, String)> = Vec::new();
    for path in files(&source).map_err(|e| format!("{}: {e}", source.display()))? {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.strip_prefix(&source).map_err(|e| e.to_string())?.with_extension("");
        if stands_alone(&text) {
            texts.push((name.display().to_string(), text));
        }
    }
    for (kind, adapter) in adapters() {
        let kernels = generated(&adapter).map_err(|e| e.to_string())?;
        texts.extend(kernels.into_iter().map(|(name, k)| (format!("generated/{kind}/{name}"), k.wgsl)));
    }
    for (name, text) in &texts {
        let t = translate(text, name)?;
        let path = out.join(name);
        let folder = path.parent().unwrap_or(out);
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let save = |extension: &str, bytes: &[u8]| {
            let file = out.join(format!("{name}.{extension}"));
            std::fs::write(&file, bytes).map_err(|e| format!("{}: {e}", file.display()))
        };
        if with_msl {
            save("metal", t.msl.as_bytes())?;
        }
        if with_spirv {
            save("spv", &t.spirv.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;
        }
    }
    Ok(texts.len())
}
