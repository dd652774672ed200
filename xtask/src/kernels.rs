//! `kernels`: every kernel as Metal source and SPIR-V, to read, to profile, or to give to Apple's compiler.

use crate::apple_kernels::apple_kernels;
use crate::samples::msl_kernel::LANGUAGE_VERSION;
use crate::samples::{adapters, files, generated, stands_alone, translate};
use std::path::Path;

/// The folder of what the Metal backend compiles, below which `fast` and `relaxed` say with which arithmetic.
pub const APPLE: &str = "apple";
/// The same of sources with tensor operations, for which a compiler needs Metal 4.
pub const APPLE4: &str = "apple4";

fn save(file: &Path, bytes: &[u8]) -> Result<(), String> {
    let told = |e: std::io::Error| format!("{}: {e}", file.display());
    std::fs::create_dir_all(file.parent().unwrap_or(file)).map_err(told)?;
    std::fs::write(file, bytes).map_err(told)
}

/// Writes the sources that the Metal backend gives to Metal's compiler, the very ones, below `out`. Gives how many there are.
///
/// # Errors
/// What kept a source from being translated or written.
pub fn write_apple(root: &Path, out: &Path) -> Result<usize, String> {
    let kernels = apple_kernels(root)?;
    for k in &kernels {
        let arithmetic = if k.msl.special { "relaxed" } else { "fast" };
        let folder = if k.msl.version() == LANGUAGE_VERSION { APPLE } else { APPLE4 };
        save(&out.join(folder).join(arithmetic).join(format!("{}.metal", k.name)), k.msl.source.as_bytes())?;
    }
    Ok(kernels.len())
}

/// Writes the kernels' files, and those generated for the sample plans on other kinds of GPU, below `out`: to read, since their Metal source has
/// bindings of no pipeline. Gives how many there are.
///
/// # Errors
/// What kept a source from being translated or written.
pub fn write(root: &Path, out: &Path, with_msl: bool, with_spirv: bool) -> Result<usize, String> {
    let folder = root.join("src");
    let mut sources: Vec<(String, String)> = Vec::new();
    for path in files(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let source = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.strip_prefix(&folder).map_err(|e| e.to_string())?.with_extension("");
        if stands_alone(&source) {
            sources.push((name.display().to_string(), source));
        }
    }
    for (kind, adapter) in adapters() {
        let kernels = generated(&adapter).map_err(|e| e.to_string())?;
        sources.extend(kernels.into_iter().map(|(name, k)| (format!("generated/{kind}/{name}"), k.wgsl)));
    }
    for (name, source) in &sources {
        let t = translate(source, name)?;
        if with_msl {
            save(&out.join(format!("other/{name}.metal")), t.msl.as_bytes())?;
        }
        if with_spirv {
            save(&out.join(format!("other/{name}.spv")), &t.spirv.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;
        }
    }
    let apple = if with_msl { write_apple(root, out)? } else { 0 };
    Ok(sources.len() + apple)
}
