//! WGSL functions that read rows eight elements at a time: 16 bytes of halves in one access where an operand lies in memory like that.

use super::row_group::RowGroup;
use super::start;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, Source, Word};

/// How the packets of a load's rows are read.
pub struct Vec16Loader {
    /// `alias X`, `fetch_x(row, packet, size) -> X`, `low_x(X)` and `high_x(X)`, for the name `x`.
    pub text: String,
    /// Where the operand begins, two words of which the sum counts, if the text reads its buffer; otherwise a packet is eight f32.
    pub raw: Option<[Word; 2]>,
}

/// What comes of a packet that reaches beyond its row's end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// Elements of the row stand in.
    Any,
    /// `REST` does, but for packets that lie beyond the end as a whole.
    Rest,
}

impl Vec16Loader {
    /// Functions called `name` over load `number`, which is rows of `size` elements; the words of its start are `at` and the next.
    pub fn of(load: &Load, number: usize, name: &str, size: usize, at: usize, beyond: Beyond) -> Vec16Loader {
        let whole = |s: &&Source| {
            let aligned = s.layout.offset.is_multiple_of(8) && (s.offset.is_none() || s.aligned);
            s.layout.is_contiguous() && size.is_multiple_of(8) && aligned && matches!(s.dtype, DType::F16 | DType::BF16)
        };
        let upper = name.to_uppercase();
        let plain = load.plain().filter(whole);
        if let Some((source, raw)) = plain.and_then(|s| Some((s, start(s)?))) {
            let wide = |x: &str, y: &str| match source.dtype {
                DType::F16 => format!("vec4<f32>(unpack2x16float(p.{x}), unpack2x16float(p.{y}))"),
                _ => format!("bitcast<vec4<f32>>(vec4<u32>(p.{x} << 16u, p.{x} & 0xffff0000u, p.{y} << 16u, p.{y} & 0xffff0000u))"),
            };
            let text = format!(
                "alias {upper} = vec4<u32>;\nfn fetch_{name}(row: u32, v: u32, size: u32) -> {upper} {{ \
                 return raw_{number}[(word({at}u) + word({}u)) / 8u + row * (size / 8u) + min(v, size / 8u - 1u)]; }}\n\
                 fn low_{name}(p: {upper}) -> vec4<f32> {{ return {}; }}\nfn high_{name}(p: {upper}) -> vec4<f32> {{ return {}; }}\n",
                at + 1,
                wide("x", "y"),
                wide("z", "w")
            );
            return Vec16Loader { text, raw: Some(raw) };
        }
        // No load waits for a condition.
        let one = |n: u32| format!("load_{number}(row * size + min(c + {n}u, size - 1u))");
        let quad = match size.is_multiple_of(4) {
            true => format!("load4_{number}(row * size + min(c, size - 4u))"),
            false => format!("vec4<f32>({}, {}, {}, {})", one(0), one(1), one(2), one(3)),
        };
        let quad = match beyond {
            Beyond::Rest if !size.is_multiple_of(8) => {
                format!("select(vec4<f32>(REST), {quad}, vec4<u32>(c) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(size))")
            }
            _ => quad,
        };
        let text = format!(
            "struct {upper} {{ low: vec4<f32>, high: vec4<f32> }}\nfn quad_{name}(row: u32, c: u32, size: u32) -> vec4<f32> {{ return {quad}; }}\n\
             fn fetch_{name}(row: u32, v: u32, size: u32) -> {upper} {{ \
             return {upper}(quad_{name}(row, 8u * v, size), quad_{name}(row, 8u * v + 4u, size)); }}\n\
             fn low_{name}(p: {upper}) -> vec4<f32> {{ return p.low; }}\nfn high_{name}(p: {upper}) -> vec4<f32> {{ return p.high; }}\n"
        );
        Vec16Loader { text, raw: None }
    }
}

/// How the threads of a kernel over rows share them in packets.
#[derive(Clone, Copy, Debug)]
pub struct RowTiling {
    /// The threads of a row.
    pub team: RowGroup,
    /// Rows of a team.
    pub per: u32,
    /// Packets of a row that a thread keeps in registers, or 0 where the row is too long.
    pub held: u32,
    vec: bool,
    eights: bool,
}

impl RowTiling {
    /// For `rows` of `cols` elements that are read as `packets`; `stored` says whether as many are written.
    pub fn new(rows: usize, cols: usize, packets: &Vec16Loader, stored: bool, adapter: &AdapterInfo) -> RowTiling {
        let number = cols.div_ceil(8).max(1);
        let most = adapter.workgroup_threads.clamp(1, 1024);
        let subgroup = if adapter.subgroup > 0 { adapter.subgroup } else { 32.min(most) };
        let wide = 256.min(most);
        let (workgroup, size) = if number == 1 && rows >= 64 {
            (wide, 1)
        } else if number <= 4 * subgroup as usize && (rows >= adapter.tuning.rows.subgroup_min_rows || number <= subgroup as usize) {
            // Few rows: small workgroups spread over more of the GPU.
            ((if rows >= adapter.tuning.rows.multi_row_min_rows { wide } else { wide.min(128) }).max(subgroup), subgroup)
        } else {
            let size = [128, 256, 512, 1024]
                .into_iter()
                .find(|&n| number <= 4 * n && (n > 128 || rows < adapter.tuning.rows.subgroup_min_rows))
                .unwrap_or(1024);
            // What is read only once needs no memory, and small workgroups take turns better.
            let size = if stored || rows < adapter.tuning.rows.subgroup_min_rows { size } else { size.min(256) };
            let size = (size as u32).min(most);
            (size, size)
        };
        let team = RowGroup { workgroup, size, col_major: false };
        let registers = if packets.raw.is_some() { 4 } else { 8 };
        let room = if workgroup >= 1024 { 32 } else { 64 };
        let room = if stored { room } else { 32 };
        let held = Some(number.div_ceil(size as usize)).filter(|h| h * registers <= room).unwrap_or(0) as u32;
        let several = if stored { 2 } else { 1 };
        let fits = size > 1 && size <= subgroup && held > 0 && several * held * registers as u32 <= 64;
        let per = if fits && rows >= adapter.tuning.rows.multi_row_min_rows { several } else { 1 };
        RowTiling { team, per, held, vec: cols.is_multiple_of(4), eights: cols.is_multiple_of(8) }
    }
    /// Workgroups.
    pub fn groups(&self, rows: usize) -> usize {
        rows.div_ceil((self.team.rows() * self.per) as usize)
    }
    /// The sections that a kernel needs which writes packets, and `more`.
    pub fn sections(&self, more: &[&'static str]) -> Vec<&'static str> {
        let put: &[&str] = if self.eights { &["put8"] } else { &["put", "put8"] };
        [&["sum4", "packets"], put, more].concat()
    }
    /// Constants of the text.
    pub fn consts(&self) -> Vec<(&'static str, u32)> {
        let [vec, eights] = [self.vec, self.eights].map(u32::from);
        vec![("TEAM", self.team.size), ("HELD", self.held), ("PER", self.per), ("VEC", vec), ("EIGHTS", eights)]
    }
    /// Counts of its loops that are written out.
    pub fn counts(&self) -> [(&'static str, u32); 3] {
        [("HELD", self.held), ("PER", self.per), ("AHEAD", 4)]
    }
    /// Its switches.
    pub fn switches(&self) -> [(&'static str, u32); 2] {
        [("VEC", self.vec as u32), ("EIGHTS", self.eights as u32)]
    }
}
