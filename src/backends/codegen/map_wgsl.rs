//! Elementwise steps as WGSL: a thread computes quads of neighbouring elements of all stores.

use super::operand::{Forms, Operands, Tail};
use super::options::CodegenOptions;
use super::program::{cast_lane, function, lane};
use super::step_shader::{StepShader, assemble, fold};
use super::uniforms::Uniforms;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, Plan, Source, Step, Store, WINDOW_UNIT};
use std::fmt::Write;

/// Threads of a workgroup: those of a tile of 32 by 32 elements, a quad each.
const WORKGROUP: u32 = 256;
/// What is read and written: four elements at a time.
const FORMS: Forms = Forms { one: false, four: true, eight: false };

/// Whether four elements may be written past a target's end: what follows there is padding, not an element that another store leaves.
fn spills(plan: &Plan, s: &Store) -> bool {
    let t = &s.target;
    if t.offset.is_some() || t.layout.offset != 0 || !t.layout.is_contiguous() {
        return false;
    }
    let bytes = t.dtype.block_bytes();
    let end = t.layout.shape.count() * bytes;
    let spilled = end.next_multiple_of(4 * bytes);
    match t.buf {
        Buf::Output(n) => end == plan.outputs[n as usize].bytes,
        // A slot's size does not tell how long the value is: a part of it ends before another store of the same buffer does.
        Buf::Slot(slot) | Buf::Window { slot, .. } => {
            // The value of a window ends in its last unit.
            let bytes = if let Buf::Window { units, .. } = t.buf { (units as usize - 1) * WINDOW_UNIT } else { plan.slots[slot as usize] };
            let mut others = plan.steps.iter().flat_map(|step| &step.stores).filter(|o| o.target.buf == t.buf);
            spilled >= bytes && others.all(|o| last_byte(&o.target).is_some_and(|e| e <= end))
        }
        _ => false,
    }
}

/// Where the last element of a target ends in its buffer, in bytes; `None` where its start is known at run time only.
fn last_byte(t: &Source) -> Option<usize> {
    let last = |(&d, &s): (&usize, &isize)| d.saturating_sub(1) * s.max(0) as usize;
    let reach: usize = t.layout.shape.iter().zip(t.layout.strides()).map(last).sum();
    t.offset.is_none().then(|| (t.layout.offset + reach + 1) * t.dtype.block_bytes())
}

/// The parts of the shader while it is written.
struct MapShader<'a> {
    step: &'a Step,
    options: CodegenOptions<'a>,
    operands: Operands,
    meta: Uniforms,
    count: usize,
    /// The number of elements, in WGSL.
    n: String,
    tail: Tail,
    /// The sources of each store, and the targets.
    ids: Vec<Vec<usize>>,
    targets: Vec<usize>,
    /// The sources, each once.
    distinct: Vec<usize>,
}

/// Writes the WGSL of an elementwise step.
pub(super) fn shader(plan: &Plan, step: &Step, options: CodegenOptions<'_>) -> TensorResult<StepShader> {
    let count = step.stores[0].shape.count();
    if count > u32::MAX as usize - 4 {
        return Err(TensorError::Unsupported(format!("{} elements in one step on a GPU", count)));
    }
    let mut m = MapShader::new(plan, step, options, count)?;
    let workgroup = options.adapter.workgroup_threads.clamp(1, WORKGROUP);
    let tiles = m.tiles(workgroup);
    let quads = m.quads(tiles.is_some());
    let last = if quads > 1 { m.meta.size((count - 1) / 4 * 4, "last") } else { String::new() };
    let loads = m.loads(quads, &last)?;
    let (functions, values) = m.values(quads)?;
    let stores = m.stores(quads);
    let (place, groups) = match tiles {
        None => m.place_in_order(quads, workgroup),
        Some(sizes) => m.place_in_tiles(sizes),
    };
    let body = format!(
        "{functions}@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
  let linear = group.y * groups.x + group.x;
{place}{loads}{values}{stores}}}
"
    );
    Ok(assemble(format!("const WORKGROUP: u32 = {workgroup}u;\n"), m.operands, m.meta, &body, fold(groups)))
}

impl<'a> MapShader<'a> {
    /// Registers the operands.
    fn new(plan: &Plan, step: &'a Step, options: CodegenOptions<'a>, count: usize) -> TensorResult<MapShader<'a>> {
        let mut meta = Uniforms::default();
        let n = meta.size(count, "count");
        let exact = count.is_multiple_of(4);
        let tail = if exact { Tail::None } else { Tail::Guard(n.clone()) };
        let mut operands = Operands::new(options.quirks.soft_f16, options.quirks.few_bindings);
        let (mut ids, mut targets) = (Vec::new(), Vec::new());
        for s in &step.stores {
            ids.push(s.sources.iter().map(|s| operands.source(s, FORMS)).collect::<TensorResult<Vec<_>>>()?);
            targets.push(operands.target(&s.target, FORMS, exact || spills(plan, s))?);
        }
        let mut distinct: Vec<usize> = ids.iter().flatten().copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        Ok(MapShader { step, options, operands, meta, count, n, tail, ids, targets, distinct })
    }

    /// The sizes of a source that is read across its rows, where the step is large enough for tiles.
    fn tiles(&self, workgroup: u32) -> Option<[usize; 4]> {
        let tuning = &self.options.adapter.tuning.map;
        let large = self.count >= tuning.tile_min_elements;
        let transposed = self.distinct.iter().find_map(|&id| self.operands.transposed(id));
        transposed.filter(|t| large && t[1] >= tuning.tile_min_run && workgroup == WORKGROUP)
    }

    /// The quads of a thread: in a large step as many as make 16 or 32 bytes of its widest operand, a workgroup apart from each other.
    fn quads(&self, tiles: bool) -> usize {
        let operands = self.step.stores.iter().flat_map(|s| s.sources.iter().chain([&s.target]));
        let widest = operands.map(|s| s.dtype.block_bytes().clamp(1, 4)).max();
        let min_elements = &self.options.adapter.tuning.map.multi_quad_elements;
        match self.count {
            _ if tiles => 1,
            n if n >= min_elements[1] => 8 / widest.unwrap_or(4),
            n if n >= min_elements[0] => 4 / widest.unwrap_or(4),
            _ => 1,
        }
    }

    /// Reads all sources of all quads; `last` is where the last quad begins.
    fn loads(&mut self, quads: usize, last: &str) -> TensorResult<String> {
        let mut loads = String::new();
        for u in 1..quads {
            // Beyond the end the last quad is read again, and not written.
            let _ = write!(loads, "  let i{u} = i0 + {}u * WORKGROUP;\n  let j{u} = min(i{u}, {last});\n", 4 * u);
        }
        for &id in &self.distinct {
            self.operands.read(id, FORMS, &self.tail, &mut self.meta)?;
            for u in 0..quads {
                let _ = writeln!(loads, "  let a{id}_{u} = x{id}v({}{u});", if u == 0 { "i" } else { "j" });
            }
        }
        Ok(loads)
    }

    /// The functions of the stores' programs, and their calls.
    fn values(&mut self, quads: usize) -> TensorResult<(String, String)> {
        let (mut functions, mut values) = (String::new(), String::new());
        for (k, s) in self.step.stores.iter().enumerate() {
            self.operands.write(self.targets[k], FORMS, &self.tail, &mut self.meta)?;
            let t = lane(s.target.dtype)?;
            let dtypes: Vec<DType> = s.sources.iter().map(|s| s.dtype).collect();
            let identity = s.program.is_identity();
            if !identity {
                functions += &function(&s.program, &format!("ps{k}"), None, &dtypes, &mut self.meta, self.options.into(s.target.dtype))?;
            }
            for u in 0..quads {
                let [x, y, z, w] = ["x", "y", "z", "w"].map(|c| {
                    let args: Vec<String> = self.ids[k].iter().map(|id| format!("a{id}_{u}.{c}")).collect();
                    match identity {
                        true => cast_lane(&args[0], dtypes[0], s.target.dtype),
                        false => cast_lane(&format!("ps{k}({})", args.join(", ")), s.program.dtype(), s.target.dtype),
                    }
                });
                let _ = writeln!(values, "  let v{k}_{u} = vec4<{t}>({}, {}, {}, {});", x?, y?, z?, w?);
            }
        }
        Ok((functions, values))
    }

    /// Writes all targets of all quads.
    fn stores(&self, quads: usize) -> String {
        let mut stores = String::new();
        for u in 0..quads {
            let all: String = self.targets.iter().enumerate().map(|(k, target)| format!("    z{target}v(i{u}, v{k}_{u});\n")).collect();
            let _ = match u {
                0 => write!(stores, "{all}"),
                _ => write!(stores, "  if i{u} < {} {{\n{all}  }}\n", self.n),
            };
        }
        stores
    }

    /// Where a thread's first quad lies in row-major order, and the number of workgroups.
    fn place_in_order(&self, quads: usize, workgroup: u32) -> (String, u64) {
        let n = &self.n;
        let place = format!("  let i0 = (linear * (WORKGROUP * {quads}u) + lane) * 4u;\n  if i0 >= {n} {{\n    return;\n  }}\n");
        (place, (self.count as u64).div_ceil((4 * quads) as u64 * workgroup as u64))
    }

    /// The same where a workgroup takes 32 by 32 elements, so that what one thread fetches next to its element serves another from the cache.
    fn place_in_tiles(&mut self, [before, run, between, inner]: [usize; 4]) -> (String, u64) {
        let (meta, n) = (&mut self.meta, &self.n);
        let [p, b, c] = [(run, "run"), (between, "between"), (inner, "inner")].map(|(v, name)| meta.size(v, name));
        let [np, nc] = [(run, "run_tiles"), (inner, "inner_tiles")].map(|(v, name)| meta.size(v.div_ceil(32), name));
        let place = format!(
            "  let t0 = linear / {nc};
  let t1 = t0 / {b};
  let t2 = t1 / {np};
  let row = (t1 - t2 * {np}) * 32u + lane / 8u;
  let column = (linear - t0 * {nc}) * 32u + lane % 8u * 4u;
  let i0 = ((t2 * {p} + row) * {b} + (t0 - t1 * {b})) * {c} + column;
  if row >= {p} || column >= {c} || i0 >= {n} {{
    return;
  }}
"
        );
        (place, before as u64 * run.div_ceil(32) as u64 * between as u64 * inner.div_ceil(32) as u64)
    }
}
