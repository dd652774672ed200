//! The code generator: one step becomes a WGSL shader, or a kernel in the driver's own language, its bindings and its metadata block.

use super::operand::{Bound, Ty, View};
use super::options::CodegenOptions;
use super::step_shader::{MAX_GROUPS, StepShader};
use super::uniforms::uniform_word;
use super::{kernel_wgsl, map_wgsl};
use crate::error::TensorResult;
use crate::plan::{Buf, Kernel, Plan, RawLanguage, RawSource, Source, Step, Work};

/// Writes a step's shader; `None` where the step has nothing to do.
pub(super) fn step_source(plan: &Plan, step: &Step, options: CodegenOptions<'_>) -> TensorResult<Option<StepShader>> {
    if step.stores.iter().all(|s| s.shape.count() == 0) {
        return Ok(None);
    }
    match &step.work {
        Work::Map => map_wgsl::shader(plan, step, options).map(Some),
        Work::Kernel(k) => match raw_source(&**k, step, options) {
            Some(raw) => Ok(Some(raw)),
            None => kernel_wgsl::shader(&**k, plan, step, options),
        },
    }
}

/// The kernel's form in the driver's language, where it has one and every operand is as such a form expects it.
fn raw_source(kernel: &dyn Kernel, step: &Step, options: CodegenOptions<'_>) -> Option<StepShader> {
    let language = options.adapter.raw?;
    let stored = |s: &Source| s.layout.is_contiguous() && s.layout.offset == 0 && s.offset.is_none() && s.buf != Buf::Iota;
    let mut views: Vec<View> = Vec::new();
    let view = |s: &Source, written, n| View { buf: Bound::Plan(s.buf), ty: Ty::U32, written, name: format!("b{n}") };
    for l in &step.loads {
        let s = l.plain().filter(|s| stored(s))?;
        views.push(view(s, false, views.len()));
    }
    for s in &step.stores {
        let t = s.plain().filter(|t| stored(t) && t.dtype == s.program.dtype())?;
        let meets = |v: &View| matches!(v.buf, Bound::Plan(b) if b == t.buf || b.slot().is_some() && b.slot() == t.buf.slot());
        if views.iter().any(meets) {
            return None;
        }
        views.push(view(t, true, views.len()));
    }
    let raw = kernel.raw(step, options.adapter)?;
    let matches = matches!((language, &raw.source), (RawLanguage::Msl, RawSource::Msl(_)) | (RawLanguage::SpirV, RawSource::SpirV(_)));
    if !matches || raw.grid.iter().any(|&g| g == 0 || g as u64 > MAX_GROUPS) {
        return None;
    }
    let source = format!("{:?}", (&raw.source, raw.entry, raw.workgroup, views.len()));
    Some(StepShader { source, views, words: raw.params.iter().map(uniform_word).collect(), grid: raw.grid, fails: false, raw: Some(raw) })
}
