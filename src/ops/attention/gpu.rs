//! The GPU form of attention.

use super::AttentionKernel;
use super::flash_coop::attention_coop;
use super::grad_gpu::attention_tiled;
use crate::plan::{AdapterInfo, Load, SCRATCH_COUNTERS, SCRATCH_WORDS, Step, Wgsl, Word};
use crate::shader::row_group::{MAX, RowGroup, SUM};
use crate::shader::vec16::{Beyond, Vec16Loader};
use crate::shader::{MAX_GROUPS, decide, grid, indexable, quads, unroll, words};
use std::ops::Range;

/// The widest head.
pub(super) const MAX_HEAD: usize = 256;
/// Which keys a query sees, for kernels that have many queries.
pub(super) const KEYS: &str = include_str!("keys.wgsl");

/// Queries `[B, H, T, D]` over keys `[B, Hkv, S, D]` and values `[B, Hkv, S, Dv]`, with an additive mask `[B, H, T, S]` if there is one.
/// The step's first parameter is the number of valid keys.
pub fn attention(of: &AttentionKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (causal, scale, window, mask) = (of.causal, of.scale as f32, of.window, of.mask);
    let (q, k, v) = (&step.loads[0].shape, &step.loads[1].shape, &step.loads[2].shape);
    let [b, h, t, d] = *q.dims() else { return None };
    let (hkv, s, dv) = (k[1], k[2], v[3]);
    let groups = b.checked_mul(h)?.checked_mul(t)?;
    if d > MAX_HEAD || dv > MAX_HEAD || hkv == 0 || h % hkv != 0 {
        return None;
    }
    if !indexable(&[q.count(), k.count(), v.count(), step.stores[0].shape.count(), if mask { groups.checked_mul(s)? } else { 0 }]) {
        return None;
    }
    if t >= adapter.tuning.attention.flash_min_queries {
        return attention_coop(of, None, step, adapter.tuning.attention.subgroup_sync_groups, adapter)
            .or_else(|| attention_tiled(of, step, adapter));
    }
    if adapter.subgroup >= 4
        && let Some(text) = few(of, step, adapter)
    {
        return Some(text);
    }
    let valid = step.params.first().map_or(Word::U32(u32::try_from(s).ok()?), |&p| Word::ParamU32(p));
    // Few queries: more threads for each, since they share its keys; never less than a quad of a value each.
    let most = adapter.workgroup_threads.clamp(64, 1024);
    let workgroup = if s <= 128 {
        128
    } else if groups >= 512 {
        256
    } else {
        512
    }
    .min(most);
    let dp = (dv.div_ceil(4).next_power_of_two() as u32).max(1);
    let quad = RowGroup { workgroup, size: 4, col_major: false };
    let team = RowGroup { workgroup, size: workgroup, col_major: false };
    let mut source = String::from(include_str!("decode.wgsl"));
    source += KEYS;
    for (name, load, vec) in [("fetch_q", 0, "VEC_D"), ("fetch_k", 1, "VEC_D"), ("fetch_v", 2, "VEC_V")] {
        source += &quads("fetch_inside", name, load, vec);
    }
    source += &quads("put", "put", 0, "VEC_V");
    source += &quad.function("key_sum", SUM, adapter);
    source += &team.function_once("team_max", MAX, adapter);
    source += if mask { "fn masked(i: u32) -> f32 { return load_3(i); }\n" } else { "fn masked(i: u32) -> f32 { return 0.0; }\n" };
    // Quads of a key for each of its four threads; and the tile's values that a thread asks for before the scores, out of `dp`.
    let (dk, early) = ((d.div_ceil(16)).next_power_of_two() as u32, dp.min(8));
    let consts = vec![
        ("DP", dp),
        ("DK", dk),
        ("EARLY", early),
        ("CAUSAL", causal as u32),
        ("VEC_D", (d % 4 == 0) as u32),
        ("VEC_V", (dv % 4 == 0) as u32),
        ("SUMS", of.sums as u32),
    ];
    let grid = grid(groups)?;
    let mut list = words(&[h, hkv, t, s, d, dv])?;
    list.extend([valid, Word::F32(scale), Word::U32(window), Word::U32(grid[0]), Word::U32(u32::try_from(groups).ok()?)]);
    let source = decide(unroll(source, &[("EARLY", early), ("PASSES", 4), ("DK", dk)]), &consts[4..]);
    Some(Wgsl { source, consts, workgroup, grid, words: list, raw: vec![], transposed: vec![] })
}

/// The most queries of a workgroup.
const ROWS: usize = 4;
/// What workgroups leave for the last of them, where memory is coherent.
const COHERENT: &str = "fn leave(at: u32, x: vec4<u32>) { scratch4.data[at] = x; }
fn left(at: u32) -> vec4<u32> { return scratch4.data[at]; }
fn arrive(block: u32) -> u32 { return atomicAdd(&scratch4.counters[block], 1u); }
fn reset(block: u32) { atomicStore(&scratch4.counters[block], 0u); }
";
/// The same elsewhere.
const ATOMIC: &str = "fn leave(at: u32, x: vec4<u32>) {
  let w = COUNTERS + 4u * at;
  atomicStore(&scratch[w], x.x); atomicStore(&scratch[w + 1u], x.y); atomicStore(&scratch[w + 2u], x.z); atomicStore(&scratch[w + 3u], x.w);
}
fn left(at: u32) -> vec4<u32> {
  let w = COUNTERS + 4u * at;
  return vec4<u32>(atomicLoad(&scratch[w]), atomicLoad(&scratch[w + 1u]), atomicLoad(&scratch[w + 2u]), atomicLoad(&scratch[w + 3u]));
}
fn arrive(block: u32) -> u32 { return atomicAdd(&scratch[block], 1u); }
fn reset(block: u32) { atomicStore(&scratch[block], 0u); }
";

/// A function that joins so many sets of sums, all of whose reads are on their way at once.
fn joined(name: &str, sets: u32) -> String {
    let each = |f: &dyn Fn(u32) -> String| (0..sets).map(f).collect::<String>();
    format!(
        "fn {name}(cell: u32) -> Joined {{\n  let r = cell / QUADS;\n{}  var top = t0.x;\n{}{}  return Joined(vec2<f32>(top, {}), {});\n}}\n",
        each(&|n| format!("  let t{n} = tops[{n}u * ROWS + r]; let x{n} = sums[{n}u * CELLS + cell];\n")),
        each(&|n| format!("  top = max(top, t{n}.x);\n")),
        each(&|n| format!("  let e{n} = exp2(t{n}.x - top);\n")),
        each(&|n| format!("{}t{n}.y * e{n}", if n > 0 { " + " } else { "" })),
        each(&|n| format!("{}x{n} * e{n}", if n > 0 { " + " } else { "" })),
    )
}

/// A function that combines a value with those of the threads whose numbers differ in these bits.
fn among(name: &str, ty: &str, join: &str, bits: Range<u32>) -> String {
    let steps: String = bits.map(|o| format!("  {{ let o = subgroupShuffleXor(r, {}u); r = {join}; }}\n", 1 << o)).collect();
    format!("fn {name}(v: {ty}) -> {ty} {{\n  var r = v;\n{steps}  return r;\n}}\n")
}

/// A function that takes a thread's parts of as many sums as there are slots, and gives it the sum over its team of slot `lane % slots`: each
/// of the first steps halves their number.
fn slot_sum(slots: u32, lanes: u32) -> String {
    let mut names: Vec<String> = (0..slots).map(|u| format!("x{u}")).collect();
    let given: Vec<String> = names.iter().map(|n| format!("{n}: f32")).collect();
    let mut text = format!("fn slot_sum({}) -> f32 {{\n", given.join(", "));
    for step in (0..slots.ilog2()).rev() {
        let bit = 1 << step;
        text += &format!("  let upper{step} = (thread & {bit}u) != 0u;\n");
        let (low, high) = names.split_at(names.len() / 2);
        let mut sums = vec![];
        for (n, (a, b)) in low.iter().zip(high).enumerate() {
            text += &format!(
                "  let y{step}_{n} = select({a}, {b}, upper{step}) + subgroupShuffleXor(select({b}, {a}, upper{step}), {bit}u);\n"
            );
            sums.push(format!("y{step}_{n}"));
        }
        names = sums;
    }
    text += &format!("  var r = {};\n", names.concat());
    for o in slots.ilog2()..lanes.ilog2() {
        text += &format!("  r += subgroupShuffleXor(r, {}u);\n", 1 << o);
    }
    text + "  return r;\n}\n"
}

/// Few queries, on an adapter with subgroups.
fn few(of: &AttentionKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (q, k, v) = (&step.loads[0].shape, &step.loads[1].shape, &step.loads[2].shape);
    let [b, h, t, d] = *q.dims() else { return None };
    let (hkv, s, dv) = (k[1], k[2], v[3]);
    let (subgroup, tuning) = (adapter.subgroup, &adapter.tuning.attention);
    let packets = [d, dv].map(|n| n.div_ceil(8).max(1));
    let lanes = (packets[0].max(packets[1]).next_power_of_two() as u32).min(subgroup).min(32);
    let [kp, vp] = packets.map(|n| (n as u32).div_ceil(lanes));
    // Queries that share keys, in blocks of about the same size.
    let all = h / hkv * t;
    let size = |load: &Load| load.sources.first().map_or(4, |s| s.dtype.block_bytes());
    let key_bytes = (d * size(&step.loads[1]) + dv * size(&step.loads[2])).max(1);
    let most = match b * hkv * s * key_bytes {
        n if n <= tuning.shared_bytes[0] && all <= ROWS => 1,
        n if n <= tuning.shared_bytes[1] || kp + vp > 2 => ROWS / 2,
        _ => ROWS,
    };
    let per_head = all.div_ceil(most);
    let rows = all.div_ceil(per_head);
    let full = tuning.split_groups[(rows > ROWS / 2) as usize];
    let blocks = b.checked_mul(hkv)?.checked_mul(per_head)?;
    let cells = rows * 2 * (lanes * vp) as usize;
    let bytes = |threads: u32| {
        let sets = ((threads / subgroup) as usize).max(threads as usize / cells).max(1);
        (sets * (cells * 16 + rows * 8) + 16) as u32
    };
    // More threads for few queries, unless there are enough of them to fill the GPU.
    let want = if rows * (kp + vp) as usize <= 2 && s > 256 && blocks <= full { 512 } else { 256 };
    let workgroup = [512, 256, 128, 64, 32, 16, 8, 4]
        .into_iter()
        .find(|&n| n <= want && n <= adapter.workgroup_threads && n % subgroup == 0 && bytes(n) <= adapter.workgroup_bytes)?;
    let (alone, share) = ((tuning.split_min_bytes / key_bytes).max(1), (tuning.split_bytes / key_bytes).max(1));
    let own = 4 * (cells + rows);
    let room = if blocks > SCRATCH_COUNTERS { 0 } else { (SCRATCH_WORDS - SCRATCH_COUNTERS) / (blocks * own).max(1) };
    let parts = if s > alone { (full / blocks.max(1)).min(s.div_ceil(share)).min(room).max(1) } else { 1 };
    let slots = if kp + vp > 2 { 2 } else { 4 }.min(lanes);

    let queries = Vec16Loader::of(&step.loads[0], 0, "q", d, 11, Beyond::Any);
    let keys = Vec16Loader::of(&step.loads[1], 1, "k", d, 13, Beyond::Any);
    let values = Vec16Loader::of(&step.loads[2], 2, "v", dv, 15, Beyond::Any);
    let mut source = String::from(include_str!("decode_split_kv.wgsl"));
    source += KEYS;
    source += &quads("put", "put", 0, "VEC_V");
    let operands = [(0, &queries), (1, &keys), (2, &values)];
    operands.iter().for_each(|o| source += &o.1.text);
    source += &slot_sum(slots, lanes);
    let (slot_bits, team_bits) = (0..slots.ilog2(), lanes.ilog2()..subgroup.ilog2());
    source += &among("slots_max", "f32", "max(r, o)", slot_bits.clone());
    source += &among("slots_sum", "f32", "r + o", slot_bits);
    source += &among("teams_max", "f32", "max(r, o)", team_bits.clone());
    source += &among("teams_sum", "f32", "r + o", team_bits.clone());
    source += &among("teams_sum4", "vec4<f32>", "r + o", team_bits);
    let scores: Vec<String> = (0..slots).map(|u| format!("s[r * SLOTS + {u}u]")).collect();
    source = source.replace("SCORES", &scores.join(", "));
    let slices = (workgroup as usize / cells).max(1);
    source += &joined("joined_subs", workgroup / subgroup);
    if parts > 1 {
        source += &joined("joined_slices", slices as u32);
        source += if adapter.coherent { COHERENT } else { ATOMIC };
    }
    if of.mask {
        source += "fn masked(i: u32) -> f32 { return load_3(i); }\n";
    }
    let rows = rows as u32;
    let counts = [("KP", kp), ("VP", vp), ("ROWS", rows), ("SLOTS", slots), ("JOINED", parts.div_ceil(slices).min(8) as u32)];
    let switches = [
        ("MASKED", of.mask as u32),
        ("MIXED", (t > 1) as u32),
        ("SPLIT", (parts > 1) as u32),
        ("COHERENT", adapter.coherent as u32),
        ("SUMS", of.sums as u32),
        ("RAGGED", (d != 8 * (lanes * kp) as usize) as u32),
        ("VEC_V", (dv % 4 == 0) as u32),
    ];
    let mut consts = vec![("SUBGROUP", subgroup), ("LANES", lanes), ("PARTS", parts as u32), ("COUNTERS", SCRATCH_COUNTERS as u32)];
    consts.push(("CAUSAL", of.causal as u32));
    consts.extend(counts);
    let valid = step.params.first().map_or(Word::U32(u32::try_from(s).ok()?), |&p| Word::ParamU32(p));
    let grid = [per_head, b.checked_mul(hkv)?, parts].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    if grid.iter().any(|&n| n > MAX_GROUPS) {
        return None;
    }
    let mut list = words(&[all, per_head, t, s, d, dv])?;
    list.extend([valid, Word::F32(of.scale as f32), Word::U32(of.window)]);
    list.extend(words(&[alone, share])?);
    let mut raw = vec![];
    for (n, p) in operands {
        raw.extend(p.raw.is_some().then_some(n));
        list.extend(p.raw.unwrap_or([Word::U32(0); 2]));
    }
    let source = decide(unroll(source, &counts), &switches);
    Some(Wgsl { source, consts, workgroup, grid, words: list, raw, transposed: vec![] })
}
