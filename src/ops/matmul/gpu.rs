//! The GPU forms of the matrix product: a few rows times a weight, and tiles.

use super::gemm_coop::matmul_coop;
use super::gemv_int8::gemv_int8;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, FusedGemv, Load, Normalization, Source, Step, Wgsl, Word};
use crate::shader::row_group::{RowGroup, SUM, SUMS};
use crate::shader::{col_major, decide, grid, indexable, repeat, start, unroll, words};

/// Rows of the left side that the GEMV kernels can keep in registers; the tuning table may ask for fewer.
const GEMV_ROW_LIMIT: usize = 8;

/// Load 0 `[batch, M, K]` times load 1 `[batch, N, K]`.
pub fn matmul(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (a, b) = (&step.loads[0], &step.loads[1]);
    let [batch, m, k] = *a.shape.dims() else { return None };
    let n = b.shape[1];
    if !indexable(&[a.shape.count(), b.shape.count(), step.stores[0].shape.count()]) {
        return None;
    }
    let weights = Weights::of(b, k);
    let by_matrices = || matmul_coop(batch, m, n, k, a, b, &weights, 0..usize::MAX, adapter);
    if m <= adapter.tuning.gemv.max_rows.min(GEMV_ROW_LIMIT) {
        let halves = batch == 1 && m > adapter.tuning.gemv.max_rows_f16 && b.plain().is_some_and(|s| s.dtype == DType::F16);
        if let Some(done) = halves.then(by_matrices).flatten() {
            return Some(done);
        }
        if weights.raw.is_none() && col_major(b) {
            turned_rows(batch, m, n, k, b, adapter).or_else(|| across_rows(batch, m, n, k, adapter))
        } else {
            gemv(a, &[(n, &weights)], false, false, None, adapter)
        }
    } else {
        by_matrices().or_else(|| tiles(batch, m, n, k, a, b, &weights, adapter))
    }
}

/// The same by matrices, in cut `cut`.
#[cfg(all(test, feature = "gpu"))]
pub(crate) fn matmul_with_tile(cut: usize, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (a, b) = (&step.loads[0], &step.loads[1]);
    let [batch, m, k] = *a.shape.dims() else { return None };
    matmul_coop(batch, m, b.shape[1], k, a, b, &Weights::of(b, k), cut..cut + 1, adapter)
}

/// How weights come out of load 1.
pub(crate) struct Weights {
    /// WGSL of `weights4(row, quad)`, for tiles.
    pub quads: String,
    /// WGSL of `first(row, item)`, `second` and `third`, an item as it is stored, and of `quad` and `scale`, its weights, for a few rows.
    pub items: String,
    pub shape: Items,
    /// The words of the first element, when the buffer is read directly.
    pub raw: Option<[Word; 2]>,
}

/// How the items of a format are made.
#[derive(Clone, Copy)]
pub(crate) struct Items {
    /// Rows of four words that an item is stored in.
    pub planes: u32,
    /// Quads of an item, the strips they come from, and the quads of a strip.
    pub quads: u32,
    pub strips: u32,
    pub span: u32,
    /// Parts with scales of their own; 0 where nothing is scaled.
    pub parts: u32,
    /// Whether something is added to what is scaled.
    pub shifted: bool,
    /// What a format's packed integers have too much.
    pub less: u32,
}

impl Items {
    /// Two quads that are weights as they are.
    const TWO: Items = Items { planes: 2, quads: 2, strips: 1, span: 2, parts: 0, shifted: false, less: 0 };
    /// The same of halves.
    const HALVES: Items = Items { planes: 1, ..Items::TWO };

    fn of_block(d: DType) -> Items {
        // Strips of 32 weights whose quads share words of quants; some are halves with a scale each.
        let (strips, parts) = match d {
            DType::Q4_K | DType::Q5_K => (2, 2),
            DType::Q2_K | DType::Q3_K | DType::Q6_K => (4, 4),
            _ => (1, 1),
        };
        let shifted = matches!(d, DType::Q4_1 | DType::Q5_1 | DType::Q2_K | DType::Q4_K | DType::Q5_K);
        let planes = if matches!(d, DType::Q8_0 | DType::Q5_K | DType::Q6_K) { 3 } else { 2 };
        let less = match d {
            DType::Q4_0 => 8,
            DType::Q5_0 => 16,
            DType::Q3_K => 4,
            DType::Q6_K => 32,
            _ => 0,
        };
        Items { planes, quads: 8, strips, span: 8, parts, shifted, less }
    }
}

/// Items of two quads.
const TWO_QUADS: &str = "fn place(row: u32) -> u32 { return row; }
fn first(row: u32, i: u32) -> vec4<u32> { return bitcast<vec4<u32>>(weights4(row, 2u * i)); }
fn second(row: u32, i: u32) -> vec4<u32> { return bitcast<vec4<u32>>(weights4(row, 2u * i + 1u)); }
fn quad(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> vec4<f32> { return bitcast<vec4<f32>>(select(x, y, c == 1u)); }
fn scale(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, s: u32) -> vec2<f32> { return vec2<f32>(1.0, 0.0); }
";
/// Items that are 16 bytes of halves.
const HALVES: &str = "fn place(row: u32) -> u32 { return (word(5u) + word(6u) + row * word(2u)) / 8u; }
fn first(at: u32, i: u32) -> vec4<u32> { return raw_1[at + i]; }
fn quad(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> vec4<f32> { return wide(select(x.xy, x.zw, c == 1u)); }
fn scale(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, s: u32) -> vec2<f32> { return vec2<f32>(1.0, 0.0); }
";
/// Quads of halves.
const HALF_QUADS: &str = "fn weights4(row: u32, v: u32) -> vec4<f32> {\n  let q = raw_1[(word(5u) + word(6u) + row * word(2u)) / 8u + v / 2u];\n  \
                          return wide(select(q.xy, q.zw, v % 2u == 1u));\n}\n";
const WIDE_F16: &str = "fn wide(h: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y)); }\n";
const WIDE_BF16: &str = "fn wide(h: vec2<u32>) -> vec4<f32> { return bitcast<vec4<f32>>(vec4<u32>(h.x << 16u, h.x & 0xffff0000u, h.y << 16u, h.y & 0xffff0000u)); }\n";
const F32_QUADS: &str =
    "fn weights4(row: u32, v: u32) -> vec4<f32> { return bitcast<vec4<f32>>(raw_1[(word(5u) + word(6u) + row * word(2u)) / 4u + v]); }\n";
/// Quads through the generated loads, zero beyond a row's end.
const LOADED_QUADS: &str = "fn weights4(row: u32, v: u32) -> vec4<f32> {\n  var w = vec4<f32>(0.0);\n  if (4u * v < word(2u)) { w = load4_1(row * word(2u) + 4u * v); }\n  return w;\n}\n";
const LOADED_ONES: &str = "fn weights4(row: u32, v: u32) -> vec4<f32> {\n  let size = word(2u); let at = row * size + 4u * v;\n  var w = vec4<f32>(0.0);\n  \
                           if (4u * v < size) { w.x = load_1(at); }\n  if (4u * v + 1u < size) { w.y = load_1(at + 1u); }\n  \
                           if (4u * v + 2u < size) { w.z = load_1(at + 2u); }\n  if (4u * v + 3u < size) { w.w = load_1(at + 3u); }\n  return w;\n}\n";
impl Weights {
    pub fn of(b: &Load, k: usize) -> Weights {
        let plain = b.plain().filter(|s| s.layout.is_contiguous());
        // Both starts together must be known to be a multiple of the unit that is read, and rows must be whole items: what lies behind
        // a row may be NaN.
        let aligned =
            |unit: usize| plain.filter(|s| k % 8 == 0 && s.layout.offset % unit == 0 && (s.offset.is_none() || s.aligned)).and_then(start);
        let two = |quads: &[&str], items: &str, raw: Option<[Word; 2]>| Weights {
            quads: quads.concat(),
            items: [quads.concat().as_str(), items].concat(),
            shape: if items == HALVES { Items::HALVES } else { Items::TWO },
            raw,
        };
        // A constant has no source.
        let dtype = b.sources.first().map_or(DType::F32, |s| s.dtype);
        let found = match dtype {
            DType::F32 => aligned(4).map(|at| two(&[F32_QUADS], TWO_QUADS, Some(at))),
            DType::F16 => aligned(8).map(|at| two(&[WIDE_F16, HALF_QUADS], HALVES, Some(at))),
            DType::BF16 => aligned(8).map(|at| two(&[WIDE_BF16, HALF_QUADS], HALVES, Some(at))),
            d if d.is_block() => {
                let whole = plain.filter(|s| k % d.block() == 0 && s.layout.offset % d.block() == 0).and_then(start);
                whole.map(|at| Weights { quads: block_text(d), items: block_items(d), shape: Items::of_block(d), raw: Some(at) })
            }
            _ => None,
        };
        found.unwrap_or_else(|| two(&[if k % 4 == 0 && !col_major(b) { LOADED_QUADS } else { LOADED_ONES }], TWO_QUADS, None))
    }

    /// The words of the start and the list of raw loads.
    pub fn start(&self) -> ([Word; 2], Vec<u8>) {
        (self.raw.unwrap_or([Word::U32(0); 2]), if self.raw.is_some() { vec![1] } else { vec![] })
    }
}

/// The section of a format in the texts of all.
fn format_section<'a>(all: &'a str, name: &str) -> &'a str {
    all.split_once(&format!("// format {name}\n")).map_or("", |(_, rest)| rest.split("// format ").next().unwrap_or(""))
}

/// What both readers of a block format need: these common functions, and the block at which a row begins.
fn block_start(d: DType, sections: &[&str]) -> String {
    let block = d.block();
    let start = format!("fn block_of(row: u32) -> u32 {{ return (word(5u) + word(6u)) / {block}u + row * (word(2u) / {block}u); }}\n");
    sections.iter().map(|s| format_section(include_str!("../../shader/lib/quant.wgsl"), s)).chain([start.as_str()]).collect()
}

/// Items of a block format.
fn block_items(d: DType) -> String {
    let (name, n) = (d.name(), d.block() / 32);
    let k = matches!(d, DType::Q4_K | DType::Q5_K);
    let mut text = block_start(d, if k { &["common", "min_K"] } else { &["common", "bytes"] });
    text += format_section(include_str!("../../shader/lib/quant_items.wgsl"), name);
    let planes = ["first", "second", "third"];
    for plane in &planes[..Items::of_block(d).planes as usize] {
        text += &format!("fn {plane}(at: u32, i: u32) -> vec4<u32> {{ return {plane}_{name}(at + i / {n}u, i % {n}u); }}\n");
    }
    text += "fn place(row: u32) -> u32 { return block_of(row); }\n";
    if !text.contains("fn quad_") {
        let bytes = format!("packed_{name}(x, y, z, g, c)");
        // Bytes with a sign are floats by way of those without.
        let (bytes, less) = if d == DType::Q8_0 { (bytes + " ^ 0x80808080u", 128) } else { (bytes, Items::of_block(d).less) };
        text += &format!(
            "fn quad_{name}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> {{ return octets({bytes}, {less}.0); }}\n"
        );
    }
    for (function, ty, of) in [("quad", "vec4<f32>", "c"), ("packed", "u32", "c"), ("scale", "vec2<f32>", "s")] {
        text += &format!(
            "fn {function}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, {of}: u32) -> {ty} {{ return {function}_{name}(x, y, z, i % {n}u, {of}); }}\n"
        );
    }
    text
}

/// `weights4` over a block format.
fn block_text(d: DType) -> String {
    let (name, quads) = (d.name(), d.block() / 4);
    let k = matches!(d, DType::Q4_K | DType::Q5_K);
    let mut text = block_start(d, if k { &["common", "bytes", "min_K", "scales_K"] } else { &["common", "bytes"] });
    text += format_section(include_str!("../../shader/lib/quant.wgsl"), name);
    text += &format!("fn weights4(row: u32, v: u32) -> vec4<f32> {{ return {name}(block_of(row) + v / {quads}u, v % {quads}u); }}\n");
    text
}

/// How a workgroup shares b's rows.
#[derive(Clone, Copy, Debug)]
struct GemvConfig {
    workgroup: u32,
    /// Threads of a row.
    lanes: u32,
    /// Rows of a team.
    rows: u32,
    /// Items on their way at once.
    ahead: u32,
    /// Whether activations are staged in workgroup memory, as they are stored.
    staged: bool,
}

/// The form of what is kept.
const KEPT_FLOATS: &str = "alias Kept = vec4<f32>;\nfn keep(x: vec4<f32>) -> Kept { return x; }\nfn keep_halves(h: vec2<u32>) -> Kept { return halves(h); }\n\
     fn kept(x: Kept) -> vec4<f32> { return x; }\n";
const KEPT_HALVES: &str = "alias Kept = vec2<u32>;\nfn keep(x: vec4<f32>) -> Kept { return vec2<u32>(pack2x16float(x.xy), pack2x16float(x.zw)); }\n\
                           fn keep_halves(h: vec2<u32>) -> Kept { return h; }\n\
                           fn kept(x: Kept) -> vec4<f32> { return halves(x); }\n";

impl GemvConfig {
    /// For `rows` rows of b of `items` items of this shape each, and a product with `mt` rows of a, which threads can read where they lie or not.
    fn pick(rows: usize, items: usize, shape: Items, mt: usize, direct: bool, adapter: &AdapterInfo) -> GemvConfig {
        let (block, tuning) = (shape.quads == 8, &adapter.tuning.gemv);
        let most = adapter.workgroup_threads.max(1);
        let widest = if adapter.subgroup > 0 { adapter.subgroup } else { 32.min(most) };
        let rounds = |lanes: u32| items.div_ceil(lanes as usize) as u32;
        // At most `most` rounds at once, as many each time.
        let even = |most: u32| rounds(widest).div_ceil(rounds(widest).div_ceil(most).max(1)).clamp(1, most);
        // The widest team that leaves few lanes idle in its last round.
        let busy = |lanes: u32| items as f32 / (rounds(lanes) * lanes) as f32;
        let full = [32, 16, 8, 4].into_iter().filter(|&l| l <= widest).find(|&l| busy(l) > 0.85).unwrap_or(4.min(widest));
        if direct && mt == 1 {
            // Nothing is waited for but memory: each thread reads its activations by eights, as the weights are read. Where rows leave
            // the GPU idle, several subgroups share one, so that all of it is on its way at once.
            let mut lanes = if block && rows >= tuning.busy_rows { full } else { widest };
            while rounds(lanes) > 4 && rows * lanes as usize * 2 <= tuning.full_threads && lanes * 8 <= most {
                lanes *= 2;
            }
            // Unpacking is work, and rows of a team share what they read of the activations.
            let (each, ahead) = match rounds(lanes) {
                _ if block && rows * lanes as usize >= tuning.full_threads => (if items >= 256 && shape.planes < 3 { 4 } else { 2 }, 1),
                r @ 1..=4 => (1, r),
                _ => (1, if block { 1 } else { 4 }),
            };
            let workgroup = if block && rows < tuning.busy_rows { 128 } else { 256 };
            return GemvConfig { workgroup: workgroup.min(most).max(4 * lanes).min(most), lanes, rows: each, ahead, staged: false };
        }
        if rows < tuning.busy_rows {
            // The time is latency: as many threads as there are, and few rounds.
            let ahead = even(if mt > 2 { 2 } else { 3 });
            let workgroup = if rows < 1024 { 128 } else { 256 };
            return GemvConfig { workgroup: workgroup.min(most).max(widest), lanes: widest, rows: 1, ahead, staged: true };
        }
        // The time is work: several rows a team, which share what they read of the activations, where that is most of the reading.
        let lanes = full;
        let (rows, ahead) = match (block, mt) {
            (true, 1) => (2, 1),
            (false, 1) => (1, rounds(lanes).clamp(1, 3)),
            _ => (mt.min(4) as u32, 1),
        };
        GemvConfig { workgroup: 256.min(most).max(widest), lanes, rows, ahead, staged: true }
    }
}

/// Words and raw loads of products of few rows whose workgroups have `block` rows of each, but for the left side's own, and the number of workgroups.
pub(crate) fn first_words(
    [batch, m, k]: [usize; 3],
    products: &[(usize, &Weights)],
    gated: bool,
    block: usize,
    norm: Option<Normalization>,
    left: [Word; 2],
) -> Option<(Vec<Word>, Vec<u8>, [u32; 3])> {
    let tiles: Vec<usize> = products.iter().map(|p| p.0.div_ceil(block)).collect();
    let groups = if gated { tiles[0] } else { tiles.iter().sum() };
    let grid = grid(batch.checked_mul(groups)?)?;
    let (n, weights) = *products.first()?;
    let mut list = words(&[m, n, k, tiles[0], grid[0] as usize])?;
    let (first, mut raw) = weights.start();
    list.extend(first);
    list.push(Word::F32(norm.map_or(0.0, |n| n.eps as f32)));
    list.extend(left);
    for (p, (n, w)) in products.iter().enumerate().skip(1) {
        list.extend(words(&[*n, tiles[p]])?);
        list.extend(w.raw?);
        raw.push(p as u8 + 1);
    }
    Some((list, raw, grid))
}

/// Up to eight rows of a: b is read once, a team of threads for each of its rows. Several products of one left side may be done at once: of
/// each the rows of b and its weights. With `gated` the two of them go row by row together, so that the second's store may read what the
/// first's has written. `vec4_store`: results must be written in groups of four. `norm`: the left side is normalised first.
fn gemv(
    a: &Load,
    products: &[(usize, &Weights)],
    gated: bool,
    vec4_store: bool,
    norm: Option<Normalization>,
    adapter: &AdapterInfo,
) -> Option<Wgsl> {
    if let Some(walk) = gemv_int8(a, products, gated, vec4_store, norm, adapter) {
        return Some(walk);
    }
    let [batch, m, k] = *a.shape.dims() else { return None };
    let (_, weights) = *products.first()?;
    let Items { planes, quads, strips, span, parts, shifted, .. } = weights.shape;
    let items = k.div_ceil(4 * quads as usize);
    let mt = m.next_power_of_two();
    let all: usize = products.iter().map(|p| p.0).sum();
    // What is normalised is no f16 any more.
    let halves = a.plain().filter(|s| s.dtype == DType::F16 && norm.is_none());
    let direct = norm.is_none() && a.plain().is_some_and(|s| s.layout.is_contiguous());
    let GemvConfig { workgroup, lanes, rows, mut ahead, staged } = GemvConfig::pick(all * batch, items, weights.shape, mt, direct, adapter);
    let packed = halves.is_some();
    let staged = staged || norm.is_some();
    let (lanes, workgroup) = if vec4_store {
        (lanes.min(adapter.workgroup_threads / 4).max(1), workgroup.max(4 * lanes).min(adapter.workgroup_threads))
    } else {
        (lanes, workgroup)
    };
    let rows = if gated { 2 * rows.div_ceil(2) } else { rows };
    let pairs = if gated { 2 } else { 1 };
    let room = (adapter.workgroup_bytes.clamp(16384, 49152) as usize - 4096) / (if packed { 8 } else { 16 } * quads as usize * mt);
    // A chunk is whole rounds of the threads; a row that is normalised is one chunk.
    while norm.is_some() && ahead > 1 && items.next_multiple_of((lanes * ahead) as usize) > room {
        ahead -= 1;
    }
    let unit = (lanes * ahead) as usize;
    let staged = staged && room >= unit;
    let eights = halves.and_then(|s| by_eights(s, k));
    let rounds = items.div_ceil(unit).next_power_of_two().min(1 << (room / unit).max(1).ilog2());
    let chunk = match norm {
        Some(_) => items.next_multiple_of(unit),
        None if staged => unit * rounds,
        None => 1,
    };
    if norm.is_some() && (!staged || chunk > room) {
        return None;
    }
    let team = RowGroup { workgroup, size: lanes, col_major: false };
    let block = (workgroup / lanes * rows / pairs) as usize;
    let (list, mut raw, grid) = first_words([batch, m, k], products, gated, block, norm, eights.unwrap_or([Word::U32(0); 2]))?;
    if eights.is_some() {
        raw.push(0);
    }
    // One quad a thread at most.
    let vec_out = products.iter().all(|p| p.0 % 4 == 0) && block % 4 == 0 && mt as u32 * rows / pairs <= 4 * lanes;
    let switches = [
        ("BATCHED", (batch > 1) as u32),
        ("MORE", (quads == 8 && mt == 1 && items.min(if staged { chunk } else { items }) > unit) as u32),
        ("DIRECT", (eights.is_some() && !staged) as u32),
        ("STAGED", staged as u32),
        ("VEC_A", (k % 4 == 0) as u32),
        ("VEC_OUT", vec_out as u32),
        ("SCALED", (parts > 0) as u32),
        ("SHIFTED", shifted as u32),
        ("EIGHTS", eights.is_some() as u32),
        ("SECOND", (planes > 1) as u32),
        ("THIRD", (planes > 2) as u32),
    ];
    let switches = [&switches[..], &norm_switches(norm)].concat();
    let parts = parts.max(1);
    let held_x = (quads as usize * chunk).div_ceil(workgroup as usize) as u32;
    let at_once = if eights.is_some() { held_x.div_ceil(2) } else { held_x }.clamp(1, 8);
    let apart: Vec<u32> = (0..if gated { 1 } else { products.len() as u32 }).collect();
    let matvec = unroll(
        repeat(include_str!("gemv.wgsl").into(), "PRODUCT", &apart),
        &[
            ("ROWS * MT", rows * mt as u32),
            ("AHEAD", ahead),
            ("PARTS", parts),
            ("PAIRS", quads / parts / 2),
            ("EIGHTH", quads / 2),
            ("MT", mt as u32),
            ("ROWS", rows),
            ("PAIR", pairs),
            ("HELD_X", if norm.is_some() { held_x } else { 1 }),
            ("AT_ONCE", at_once),
        ],
    );
    let kept = if packed { KEPT_HALVES } else { KEPT_FLOATS };
    let mut text = [matvec.as_str(), &several(products, gated, vec_out), kept, &team.function("team_sum", SUM, adapter)].concat();
    if let Some(norm) = norm {
        text += &norm_text(norm, products.len() + 1, workgroup, adapter);
    }
    let mut consts = vec![
        ("LANES", lanes),
        ("ROWS", rows),
        ("AHEAD", ahead),
        ("MT", mt as u32),
        ("QUADS", quads),
        ("EIGHTH", quads / 2),
        ("STRIPS", strips),
        ("SPAN", span),
        ("PARTS", parts),
        ("CHUNK", chunk as u32),
        ("PAIR", pairs),
        ("HELD_X", held_x),
        ("AT_ONCE", at_once),
    ];
    consts.extend(&switches);
    Some(Wgsl { source: decide(text, &switches), consts, workgroup, grid, words: list, raw, transposed: vec![] })
}

/// WGSL by which a workgroup normalises a left side: sums over its threads, and what rows are multiplied with and what is added, from load
/// `load` on.
pub(crate) fn norm_text(norm: Normalization, load: usize, workgroup: u32, adapter: &AdapterInfo) -> String {
    let (name, combine) = if norm.rms { ("all_sum", SUM) } else { ("both_sums", SUMS) };
    let mut text = RowGroup { workgroup, size: workgroup, col_major: false }.function(name, combine, adapter);
    if norm.weight {
        text += &format!("fn gain4(c: u32) -> vec4<f32> {{ return load4_{load}(c); }}\n");
    }
    if norm.bias {
        text += &format!("fn shift4(c: u32) -> vec4<f32> {{ return load4_{}(c); }}\n", load + norm.weight as usize);
    }
    text
}

/// The switches of a left side that is normalised, or is not.
pub(crate) fn norm_switches(norm: Option<Normalization>) -> [(&'static str, u32); 4] {
    let is = |f: fn(Normalization) -> bool| norm.is_some_and(f) as u32;
    [("NORMED", is(|_| true)), ("CENTRED", is(|n| !n.rms)), ("GAIN", is(|n| n.weight)), ("SHIFT", is(|n| n.bias))]
}

/// The words of the start of rows of `k` elements of 16 bits that can be read eight at a time.
pub(crate) fn by_eights(s: &Source, k: usize) -> Option<[Word; 2]> {
    let whole = k.is_multiple_of(8) && s.layout.is_contiguous() && s.layout.offset.is_multiple_of(8) && (s.offset.is_none() || s.aligned);
    start(s).filter(|_| whole)
}

/// Products of load 0 `[1, M, K]` with the loads behind it, into the stores in the same order, see `gemv`.
pub fn fused_gemv(step: &Step, joined: &FusedGemv, adapter: &AdapterInfo) -> Option<Wgsl> {
    let k = step.loads[0].shape[2];
    let weights: Vec<(usize, Weights)> = step.loads[1..=joined.products].iter().map(|b| (b.shape[1], Weights::of(b, k))).collect();
    let products: Vec<(usize, &Weights)> = weights.iter().map(|(n, w)| (*n, w)).collect();
    gemv(&step.loads[0], &products, joined.gated, joined.vec4_store, joined.norm, adapter)
}

/// What products must have in common to be done at once: the dtype of right sides that are read directly.
pub fn matmul_kind(step: &Step) -> Option<DType> {
    let (a, b) = (&step.loads[0], &step.loads[1]);
    let few =
        a.shape[0] == 1 && a.shape[1] <= GEMV_ROW_LIMIT && indexable(&[a.shape.count(), b.shape.count(), step.stores[0].shape.count()]);
    if !few {
        return None;
    }
    Weights::of(b, a.shape[2]).raw?;
    b.plain().map(|s| s.dtype)
}

/// The functions by which a text finds its product, reads its weights and writes its results.
pub(crate) fn several(products: &[(usize, &Weights)], gated: bool, vec_out: bool) -> String {
    let count = products.len();
    let weights = products[0].1;
    let planes = weights.shape.planes;
    if count == 1 {
        return [
            weights.items.as_str(),
            "fn locate(group: u32) -> u32 { return group; }\nfn columns() -> u32 { return word(1u); }\nfn tiles_of() -> u32 { return word(3u); }\n",
            "fn chosen(p: u32) -> bool { return asked(); }\n",
            "fn place_in(p: u32, row: u32) -> u32 { return place(row); }\n",
            "fn first_of(p: u32, at: u32, i: u32) -> vec4<u32> { return first(at, i); }\n",
            if planes > 1 { "fn second_of(p: u32, at: u32, i: u32) -> vec4<u32> { return second(at, i); }\n" } else { "" },
            if planes > 2 { "fn third_of(p: u32, at: u32, i: u32) -> vec4<u32> { return third(at, i); }\n" } else { "" },
            &writers(count, gated, vec_out),
        ]
        .concat();
    }
    let mut text = String::from("var<private> part: u32;\n");
    // Words of a product: N, tiles, and the two of the start.
    let at = |p: usize| if p == 0 { [1, 3, 5] } else { [4 * p + 6, 4 * p + 7, 4 * p + 8] };
    let of = |w: usize| format!("word({w}u)");
    for p in 0..count {
        text += &instantiate(&weights.items, p, at(p)[2]);
    }
    let packed = weights.items.contains("fn packed(");
    for (function, ty) in
        [("quad", "vec4<f32>"), ("packed", "u32"), ("scale", "vec2<f32>")].into_iter().filter(|f| packed || f.0 != "packed")
    {
        text += &format!(
            "fn {function}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, n: u32) -> {ty} {{ return {function}_p0(x, y, z, i, n); }}\n"
        );
    }
    let choose = |by: &str, each: &dyn Fn(usize) -> String| {
        let tests: String = (1..count).map(|p| format!("  if ({by} == {p}u) {{ return {}; }}\n", each(p))).collect();
        format!("{tests}  return {};\n", each(0))
    };
    if gated {
        text += "fn locate(group: u32) -> u32 { return group; }\nfn columns() -> u32 { return word(1u); }\nfn tiles_of() -> u32 { return word(3u); }\n";
        text += "fn chosen(p: u32) -> bool { return asked(); }\n";
    } else {
        let steps: String =
            (0..count - 1).map(|p| format!("  if (g < {0}) {{ return g; }}\n  g -= {0};\n  part = {1}u;\n", of(at(p)[1]), p + 1)).collect();
        text += &format!("fn locate(group: u32) -> u32 {{\n  var g = group;\n  part = 0u;\n{steps}  return g;\n}}\n");
        text += &format!("fn columns() -> u32 {{\n{}}}\n", choose("part", &|p| of(at(p)[0])));
        text += &format!("fn tiles_of() -> u32 {{\n{}}}\n", choose("part", &|p| of(at(p)[1])));
        text += "fn chosen(p: u32) -> bool { return part == p; }\n";
    }
    text += &format!("fn place_in(p: u32, row: u32) -> u32 {{\n{}}}\n", choose("p", &|p| format!("place_p{p}(row)")));
    for plane in &["first", "second", "third"][..planes as usize] {
        let body = choose("p", &|p| format!("{plane}_p{p}(at, i)"));
        text += &format!("fn {plane}_of(p: u32, at: u32, i: u32) -> vec4<u32> {{\n{body}}}\n");
    }
    text + &writers(count, gated, vec_out)
}

/// The functions by which a text writes results, in groups of four or one by one, and what it asks for before: `Early`.
fn writers(count: usize, gated: bool, vec_out: bool) -> String {
    let by = if gated { "p" } else { "part" };
    let each = |f: &dyn Fn(usize) -> String| -> String {
        let others: String = (1..count).map(|p| format!("if ({by} == {p}u) {{ {}; return; }} ", f(p))).collect();
        format!("{others}{};", f(0))
    };
    if !vec_out {
        let body = each(&|p| format!("store_{p}(i, v)"));
        return format!("alias Early = u32;\nfn put(p: u32, i: u32, v: f32) {{ {body} }}\n");
    }
    if gated {
        // The second's store reads what the first's has written.
        let body = each(&|p| format!("store4_{p}(i, v)"));
        return format!(
            "alias Early = u32;\nfn early(i: u32) -> Early {{ return i; }}\nfn put4(p: u32, i: u32, v: vec4<f32>, e: Early) {{ {body} }}\n"
        );
    }
    let fields: String = (0..count).map(|p| format!("e{p}: Reads_{p}, ")).collect();
    let reads: String = match count {
        1 => "e.e0 = reads4_0(i);".into(),
        _ => (0..count).map(|p| format!("if (part == {p}u) {{ e.e{p} = reads4_{p}(i); }} ")).collect(),
    };
    let body = each(&|p| format!("write4_{p}(i, v, e.e{p})"));
    format!(
        "struct Early {{ {fields} }}\nfn early(i: u32) -> Early {{ var e: Early; {reads} return e; }}\n\
         fn put4(p: u32, i: u32, v: vec4<f32>, e: Early) {{ {body} }}\n"
    )
}

/// The text of a format for product `p`: its functions under names of their own, its buffer, and its start at words `start` and behind.
/// Types are the first product's.
fn instantiate(text: &str, p: usize, start: usize) -> String {
    let names: Vec<&str> =
        text.lines().filter_map(|l| l.strip_prefix("fn ")).filter_map(|l| l.split('(').next()).chain(["raw_1", "wide_1"]).collect();
    let mut out = String::with_capacity(text.len() * 9 / 8);
    for line in text.lines().filter(|l| p == 0 || !(l.starts_with("struct ") || l.starts_with("alias "))) {
        let line = line.replace("word(5u) + word(6u)", &format!("word({start}u) + word({}u)", start + 1));
        let mut rest = line.as_str();
        while !rest.is_empty() {
            let word = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let (name, tail) = rest.split_at(word.max(1).min(rest.len()));
            match name {
                "raw_1" => out += &format!("raw_{}", p + 1),
                "wide_1" => out += &format!("wide_{}", p + 1),
                n if names.contains(&n) => out += &format!("{n}_p{p}"),
                n => out += n,
            }
            rest = tail;
        }
        out.push('\n');
    }
    out
}

/// Up to eight rows of a, where b's rows are neighbours in memory.
fn across_rows(batch: usize, m: usize, n: usize, k: usize, adapter: &AdapterInfo) -> Option<Wgsl> {
    let workgroup = 512.min(adapter.workgroup_threads.max(1));
    let cols = 32.min(workgroup);
    let mt = m.next_power_of_two();
    let chunk = k.next_power_of_two().clamp(64, 2048 / mt);
    let tiles = n.div_ceil(cols as usize);
    let grid = grid(batch.checked_mul(tiles)?)?;
    // Sums of all slices of all rows must fit beside the activations.
    let workgroup = if mt as u32 * workgroup * 4 + 8192 > adapter.workgroup_bytes { 128.min(workgroup) } else { workgroup };
    Some(Wgsl {
        source: include_str!("gemv_col_major.wgsl").into(),
        consts: vec![("COLS", cols), ("MT", mt as u32), ("CHUNK", chunk as u32)],
        workgroup,
        grid,
        words: words(&[m, n, k, tiles, grid[0] as usize])?,
        raw: vec![],
        transposed: vec![],
    })
}

/// Up to eight rows of a, where b is stored [batch, K, N] and can be read 16 bytes at a time.
fn turned_rows(batch: usize, m: usize, n: usize, k: usize, b: &Load, adapter: &AdapterInfo) -> Option<Wgsl> {
    let source = b.plain()?;
    let (per, wide) = match source.dtype {
        DType::F32 => (4, "fn wide(q: vec4<u32>, c: u32) -> vec4<f32> { return bitcast<vec4<f32>>(q); }\n".to_string()),
        d @ (DType::F16 | DType::BF16) => {
            let halves = if d == DType::F16 { WIDE_F16 } else { WIDE_BF16 }.replace("fn wide", "fn wide2");
            (8, format!("{halves}fn wide(q: vec4<u32>, c: u32) -> vec4<f32> {{ return wide2(select(q.xy, q.zw, c == 1u)); }}\n"))
        }
        _ => return None,
    };
    let (sizes, strides) = (source.layout.shape.dims(), source.layout.strides());
    let (over_batch, over_k) = match (sizes, strides) {
        (&[sn, sk], &[1, t]) if batch == 1 && sn == n && sk == k => (0, t),
        (&[sb, sn, sk], &[z, 1, t]) if sb == batch && sn == n && sk == k => (z, t),
        _ => return None,
    };
    let whole = |x: isize| x >= 0 && x as usize % per == 0;
    if !whole(over_batch)
        || !whole(over_k)
        || n % per != 0
        || source.layout.offset % per != 0
        || (source.offset.is_some() && !source.aligned)
    {
        return None;
    }
    // Few columns a workgroup, so that there are many workgroups, but whole 32-byte sectors.
    let cols = (n / (per * 128)).next_power_of_two().clamp(2, 32) as u32;
    let mt = m.next_power_of_two();
    let workgroup = ((k / 4).next_power_of_two() as u32).saturating_mul(cols).clamp(64, 512).min(adapter.workgroup_threads.max(1));
    let ahead = if m > 2 { 2 } else { 4 };
    let unit = workgroup / cols * ahead;
    let room = (adapter.workgroup_bytes.clamp(16384, 32768) - 16 * workgroup) / (4 * mt as u32);
    let chunk = unit * (k.div_ceil(unit as usize).next_power_of_two() as u32).min(1 << (room / unit).max(1).ilog2());
    if chunk > room {
        return None;
    }
    let tiles = n.div_ceil(per * cols as usize);
    let grid = grid(batch.checked_mul(tiles)?)?;
    let mut list = words(&[m, n, k, tiles, grid[0] as usize])?;
    list.extend(start(source)?);
    list.extend(words(&[over_k as usize, over_batch as usize])?);
    Some(Wgsl {
        source: (unroll(include_str!("gemv_transposed.wgsl").into(), &[("AHEAD", ahead), ("NQ", per as u32 / 4), ("MT", mt as u32)])
            + &wide)
            .into(),
        consts: vec![("COLS", cols), ("NQ", per as u32 / 4), ("MT", mt as u32), ("AHEAD", ahead), ("CHUNK", chunk)],
        workgroup,
        grid,
        words: list,
        raw: vec![1],
        transposed: vec![],
    })
}

/// Many rows of a: tiles of both operands in workgroup memory.
#[allow(clippy::too_many_arguments)]
fn tiles(batch: usize, m: usize, n: usize, k: usize, a: &Load, b: &Load, weights: &Weights, adapter: &AdapterInfo) -> Option<Wgsl> {
    let threads = adapter.workgroup_threads;
    let bytes = adapter.workgroup_bytes as usize;
    // (TX, TY, RM, RN, SPLIT): the largest tile that still gives the GPU enough of them; at last small ones, whose threads share K.
    let shapes = [(16, 16, 8, 8, 1), (16, 16, 4, 4, 1), (8, 8, 4, 4, 1), (8, 8, 4, 4, 2), (8, 8, 4, 4, 4)];
    type Tile = (u32, u32, u32, u32, u32);
    let fits =
        |&(tx, ty, rm, rn, split): &Tile| tx * ty * split <= threads && (tx * rn + ty * rm) as usize * 9 * 16 * split as usize <= bytes;
    let count = |&(tx, ty, rm, rn, _): &Tile| batch * m.div_ceil((ty * rm) as usize) * n.div_ceil((tx * rn) as usize);
    let possible = || shapes.iter().filter(|s| fits(s));
    let shape = possible().find(|s| count(s) >= 128).or_else(|| possible().next_back())?;
    let (tx, ty, rm, rn, split) = *shape;
    let (across_n, downs) = (n.div_ceil((tx * rn) as usize), m.div_ceil((ty * rm) as usize));
    let groups = batch.checked_mul(across_n)?.checked_mul(downs)?;
    let grid = grid(groups)?;
    let (start, raw) = weights.start();
    let mut list = words(&[m, n, k, across_n, grid[0] as usize])?;
    list.extend(start);
    list.extend(words(&[downs, groups])?);
    Some(Wgsl {
        source: decide(
            [
                unroll(
                    include_str!("gemm_tiled.wgsl").into(),
                    &[
                        ("QUADS_A", ty * rm * 8 / (tx * ty)),
                        ("QUADS_B", tx * rn * 8 / (tx * ty)),
                        ("RM * RN / 4u", rm * rn / 4),
                        ("RM", rm),
                        ("RN / 4u", rn / 4),
                        ("RN", rn),
                    ],
                ),
                weights.quads.clone(),
            ]
            .concat(),
            &[("VEC_A", (k % 4 == 0 && !col_major(a)) as u32), ("VEC_OUT", (n % 4 == 0) as u32)],
        ),
        consts: vec![
            ("TX", tx),
            ("TY", ty),
            ("RM", rm),
            ("RN", rn),
            ("SPLIT", split),
            ("VEC_A", (k % 4 == 0 && !col_major(a)) as u32),
            ("VEC_OUT", (n % 4 == 0) as u32),
            ("ACROSS_A", col_major(a) as u32),
            ("ACROSS_B", (weights.raw.is_none() && col_major(b)) as u32),
        ],
        workgroup: tx * ty * split,
        grid,
        words: list,
        raw,
        transposed: vec![],
    })
}
