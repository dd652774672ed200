//! What a kernel's code takes into account besides its step: the adapter and what its driver was found to do.

use crate::dtype::DType;
use crate::plan::AdapterInfo;

/// What a driver was found to do otherwise than most, to which shader source adapts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DriverQuirks {
    /// It rounds to f16 otherwise than IEEE says, so that f16 is packed by integer arithmetic.
    pub soft_f16: bool,
    /// Its comparisons with NaN are false in kernels that select by them.
    pub ordered: bool,
    /// NaN and infinities go through exp and divisions as IEEE says.
    pub infinite: bool,
    /// It takes so few bindings that each buffer is bound once.
    pub few_bindings: bool,
}

/// What a shader takes into account besides its step.
#[derive(Clone, Copy)]
pub(super) struct CodegenOptions<'a> {
    pub adapter: &'a AdapterInfo,
    pub quirks: DriverQuirks,
    /// Whether a program's result is rounded to 16 bits, so that quicker forms of slow functions do.
    pub quick: bool,
}

impl<'a> CodegenOptions<'a> {
    /// The options for any program.
    pub fn new(adapter: &'a AdapterInfo, quirks: DriverQuirks) -> CodegenOptions<'a> {
        CodegenOptions { adapter, quirks, quick: false }
    }

    /// The same for a program whose result is stored as `target`.
    pub fn into(self, target: DType) -> CodegenOptions<'a> {
        CodegenOptions { quick: matches!(target, DType::F16 | DType::BF16), ..self }
    }
}
