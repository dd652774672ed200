//! The matrix product of f16 operands by the adapter's cooperative matrices.

use super::matmul::Weights;
use super::{across, decide, grid, unroll, words};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, Wgsl, Word};

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
    let mut text = unroll(text, &[("FM * FN", f * f), ("QUADS_A", per), ("QUADS_B", per), ("STEPS", steps), ("FN", f), ("FM", f)]);
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
    ];
    consts.extend(switches);
    let (start, raw) = if packed { weights.start() } else { ([Word::U32(0); 2], vec![]) };
    let mut list = words(&[m, n, k, over, grid[0] as usize])?;
    list.extend(start);
    list.push(Word::U32(down as u32));
    let turned = [(0, turned_a), (1, turned_b)].into_iter().filter(|t| t.1).map(|t| t.0).collect();
    Some(Wgsl { source: decide(text, &switches), consts, workgroup, grid, words: list, raw, turned })
}

/// Tiles from which on the largest are taken.
const MANY: usize = 128;
