//! The matrix product of f16 operands by the adapter's cooperative matrices.

use super::matmul::Weights;
use super::{across, decide, grid, unroll, words};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, Wgsl, Word};
use crate::shape::Shape;

/// Quads of k in a tile.
const QUADS: u32 = 8;
/// Subgroups of a workgroup in each direction.
const SIDE: u32 = 2;

/// Tiles of both operands, multiplied by matrices; `None` where the adapter has none, or an operand is not f16: products of wider
/// numbers are not rounded behind the user's back.
#[allow(clippy::too_many_arguments)]
pub fn matmul_coop(
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    a: &Load,
    b: &Load,
    weights: &Weights,
    adapter: &AdapterInfo,
) -> Option<Wgsl> {
    let (edge, subgroup) = (adapter.coop, adapter.subgroup);
    let workgroup = SIDE * SIDE * subgroup;
    let packed = b.sources.first().is_some_and(|s| s.dtype.is_block()) && weights.raw.is_some();
    let halves = a.dtype() == DType::F16 && (packed || b.dtype() == DType::F16);
    if edge == 0 || subgroup == 0 || !halves || workgroup > adapter.workgroup_threads {
        return None;
    }
    // Operands that are read as [K, rows], so that threads read neighbours.
    let turned_a = across(a) && a.turned().is_some();
    let turned_b = !packed && across(b) && b.turned().is_some();
    let (lines_a, lines_b) = (lines(a, batch, m, k, turned_a), lines(b, batch, n, k, turned_b).filter(|_| !packed));
    // Matrices of a subgroup in each direction: as many as still give the machine enough tiles.
    let side = |f: u32| (SIDE * f * edge) as usize;
    let count = |f: u32| batch * m.div_ceil(side(f)) * n.div_ceil(side(f));
    let bytes = |f: u32| {
        let tile = |turned: bool| if turned { 4 * QUADS * (side(f) as u32 + 8) } else { side(f) as u32 * (4 * QUADS + 8) };
        2 * (tile(turned_a) + tile(turned_b)) + 4 * SIDE * SIDE * edge * f * edge
    };
    let fits = |f: u32| bytes(f) <= adapter.workgroup_bytes && side(f) as u32 * QUADS % workgroup == 0;
    let f = [4, 2].into_iter().find(|&f| fits(f) && (f == 2 || count(f) >= MANY))?;
    let (over, down) = (n.div_ceil(side(f)), m.div_ceil(side(f)));
    let grid = grid(batch.checked_mul(over)?.checked_mul(down)?)?;
    // Matrices of 16 are Vulkan's, and only there one may be loaded through a pointer to vectors.
    let unit = if edge == 16 { 4 } else { 1 };
    let per = side(f) as u32 * QUADS / workgroup;
    let text = include_str!("../matmul_coop.wgsl").replace("coop_mat8x8", if edge == 16 { "coop_mat16x16" } else { "coop_mat8x8" });
    let steps = 4 * QUADS / edge;
    let mut text = unroll(
        text,
        &[
            ("FM * FN", f * f),
            ("QUADS_A", per),
            ("QUADS_B", per),
            ("EIGHTS_A", per / 2),
            ("EIGHTS_B", per / 2),
            ("STEPS", steps),
            ("FN", f),
            ("FM", f),
        ],
    );
    let put = |name: &str, to: &str| match unit {
        4 => format!("fn {name}(at: u32, h: vec4<f16>) {{ {to}[at] = h; }}\n"),
        _ => format!(
            "fn {name}(at: u32, h: vec4<f16>) {{ {to}[at] = h.x; {to}[at + 1u] = h.y; {to}[at + 2u] = h.z; {to}[at + 3u] = h.w; }}\n"
        ),
    };
    text += &format!("alias Half = {};\n{}{}", if unit == 4 { "vec4<f16>" } else { "f16" }, put("put_x", "xs"), put("put_y", "ys"));
    if packed {
        text += &weights.quads;
    }
    // A quad of a line is whole, and its elements are neighbours in memory or at least in the load.
    let whole =
        |turned: bool, rows: usize, load: &Load| if turned { rows.is_multiple_of(4) } else { k.is_multiple_of(4) && !across(load) } as u32;
    let switches = [
        ("VEC_A", whole(turned_a, m, a)),
        ("VEC_B", whole(turned_b, n, b)),
        ("VEC_OUT", n.is_multiple_of(4) as u32),
        ("RAW_B", packed as u32),
        ("TURNED_A", turned_a as u32),
        ("TURNED_B", turned_b as u32),
        ("HALVES_A", lines_a.is_some() as u32),
        ("HALVES_B", lines_b.is_some() as u32),
    ];
    let mut consts = vec![
        ("SUBGROUP", subgroup),
        ("SM", SIDE),
        ("SN", SIDE),
        ("FM", f),
        ("FN", f),
        ("EDGE", edge),
        ("UNIT", unit),
        ("QUADS", QUADS),
        ("QUADS_A", per),
        ("QUADS_B", per),
        ("EIGHTS_A", per / 2),
        ("EIGHTS_B", per / 2),
    ];
    consts.extend(switches);
    let (start, mut raw) = if packed { weights.start() } else { ([Word::U32(0); 2], vec![]) };
    let mut list = words(&[m, n, k, over, grid[0] as usize])?;
    list.extend(start);
    list.push(Word::U32(down as u32));
    for (load, lines) in [(0, lines_a), (1, lines_b)] {
        list.extend(words(&lines.unwrap_or_default())?);
        if lines.is_some() {
            raw.push(load);
        }
    }
    let turned = [(0, turned_a), (1, turned_b)].into_iter().filter(|t| t.1).map(|t| t.0).collect();
    Some(Wgsl { source: decide(text, &switches), consts, workgroup, grid, words: list, raw, turned })
}

/// Where the lines of an operand lie that is stored as f16 and can be read by eights, in eights: the start, from one outer batch to the
/// next, the inner batches of each, from one of those to the next, from one line to the next.
fn lines(load: &Load, batch: usize, rows: usize, k: usize, turned: bool) -> Option<[usize; 5]> {
    let source = load.plain().filter(|s| s.dtype == DType::F16 && s.offset.is_none())?;
    let eights = |n: isize| usize::try_from(n).ok().filter(|n| n.is_multiple_of(8)).map(|n| n / 8);
    eights(if turned { rows } else { k } as isize)?;
    // Heads and sequences are not always one dimension of memory.
    let inner = std::iter::once(1).chain(source.layout.shape.dims().iter().copied()).filter(|&d| d > 0 && batch.is_multiple_of(d));
    inner.into_iter().find_map(|inner| {
        let layout = source.layout.reshape(Shape::of(&[batch / inner, inner, rows, k]))?;
        let &[outer, between, row, column] = layout.strides() else { return None };
        let (line, fast) = if turned { (column, row) } else { (row, column) };
        let words = [eights(layout.offset as isize)?, eights(outer)?, inner, eights(between)?, eights(line)?];
        (fast == 1).then_some(words)
    })
}

/// Tiles from which on the largest are taken.
const MANY: usize = 128;
