//! Matrix-vector products: one row of activations (or a few) against rows of weights in any storage format. Pure functions
//! on slices; the caller splits the rows among its threads.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod bf16;
mod int8;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_arch = "aarch64")]
mod split;
#[cfg(target_arch = "x86_64")]
mod tables;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod unpack;
#[cfg(target_arch = "aarch64")]
mod unpack_neon;

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use std::sync::OnceLock;

pub use int8::{GROUP as INT8_GROUP, SMALLEST as INT8_SMALLEST, gemv_int8, round_int8};

/// Rows of activations that one pass over the weights takes at most.
pub const MAX_ROWS: usize = 8;
/// The most that [`Path::streamed_rows`] gives.
pub const MAX_STREAMED_ROWS: usize = 16;

/// Which instructions the kernels use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Path {
    /// What the compilation target guarantees.
    Plain,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// NEON, which every 64-bit Arm processor has.
    Neon,
    /// NEON with `sdot`: sums of four products of bytes.
    Dotprod,
    /// The same with `smmla`: products of 2×8 bytes with 8×2 bytes.
    I8mm,
    /// The same with `bfdot` and `bfmmla`: sums of products of bf16.
    Bf16,
}

impl Path {
    /// Every path; those of a processor slowest first.
    pub const ALL: [Path; 7] = [Path::Plain, Path::Avx2, Path::Avx512, Path::Neon, Path::Dotprod, Path::I8mm, Path::Bf16];

    /// The name that `TL_CPU` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Path::Plain => "plain",
            Path::Avx2 => "avx2",
            Path::Avx512 => "avx512",
            Path::Neon => "neon",
            Path::Dotprod => "dotprod",
            Path::I8mm => "i8mm",
            Path::Bf16 => "bf16",
        }
    }

    /// Whether this processor can run it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Path::Plain => true,
            Path::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
            Path::Avx512 => {
                Path::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            Path::Neon | Path::Dotprod | Path::I8mm | Path::Bf16 => false,
        }
        #[cfg(target_arch = "aarch64")]
        match self {
            Path::Plain | Path::Neon => true,
            Path::Dotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            Path::I8mm => Path::Dotprod.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            Path::Bf16 => Path::I8mm.is_available() && std::arch::is_aarch64_feature_detected!("bf16"),
            Path::Avx2 | Path::Avx512 => false,
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        matches!(self, Path::Plain)
    }

    /// The paths that this processor can run, slowest first.
    pub fn available() -> Vec<Path> {
        Path::ALL.into_iter().filter(|p| p.is_available()).collect()
    }

    /// The path of that name.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] for an unknown name, or where the processor lacks the instructions; the message lists the
    /// available names.
    pub fn parse(name: &str) -> TensorResult<Path> {
        match Path::ALL.into_iter().find(|p| p.name() == name) {
            Some(path) if path.is_available() => Ok(path),
            found => {
                let why = if found.is_some() { "this processor lacks it" } else { "unknown instruction set" };
                let names: Vec<_> = Path::available().into_iter().map(Path::name).collect();
                Err(TensorError::UnsupportedDevice(format!("TL_CPU={name}: {why}; expected {}", names.join(", "))))
            }
        }
    }

    /// The path of this process: what the variable `TL_CPU` names, else the fastest that the processor can run.
    ///
    /// # Errors
    /// Those of [`Path::parse`], where `TL_CPU` is set.
    pub fn get() -> TensorResult<Path> {
        static PATH: OnceLock<TensorResult<Path>> = OnceLock::new();
        PATH.get_or_init(|| match std::env::var_os("TL_CPU") {
            Some(name) => Path::parse(&name.to_string_lossy()),
            None => Ok(Path::ALL.into_iter().rfind(|p| p.is_available()).unwrap_or(Path::Plain)),
        })
        .clone()
    }

    /// Rows of activations up to which weights are streamed past them; more are worth decoding or packing the weights. With AVX-512 blocks are decoded in
    /// registers fast enough for several passes.
    pub fn streamed_rows(self, dtype: DType) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self == Path::Avx512 && avx512::decodes(dtype) {
            return MAX_STREAMED_ROWS;
        }
        let _ = dtype;
        MAX_ROWS
    }

    /// The kernels that work on decoded weights.
    fn kernels(self) -> Kernels {
        #[cfg(target_arch = "x86_64")]
        match self {
            Path::Avx512 => return Kernels { decode: decode_tables::<true>, tile: avx512::tile },
            Path::Avx2 => return Kernels { decode: decode_tables::<false>, tile: avx2::tile },
            _ => {}
        }
        #[cfg(target_arch = "aarch64")]
        if self != Path::Plain {
            return Kernels { decode: neon::decode, tile: neon::tile };
        }
        Kernels { decode: plain::decode, tile: plain::tile }
    }
}

/// Elements of a row that are decoded at a time where a format has no direct kernel: two rows of them stay in the L1 cache.
const CHUNK: usize = 1024;

/// Decodes whole blocks.
type Decode = unsafe fn(DType, &[u8], &mut [f32]);
/// Adds the dot products of two decoded chunks with up to four rows of activations.
type DotTile = unsafe fn(&[[f32; CHUNK]; 2], usize, &[f32], usize, usize, &mut [[f32; 4]; 2]);

/// The two parts of the kernel that serves every format.
struct Kernels {
    decode: Decode,
    tile: DotTile,
}

/// Decodes indices of tables by shuffles, and everything else with AVX-512 (`WIDE`) or AVX2.
///
/// # Safety
/// The processor has the features; `bytes` holds exactly the blocks of `out`'s elements.
#[cfg(target_arch = "x86_64")]
unsafe fn decode_tables<const WIDE: bool>(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: as promised to this function.
    unsafe {
        match dtype.coded().and_then(|f| Some((f, f.table?))) {
            Some((format, table)) => tables::decode(format, table, bytes, out),
            None if WIDE => avx512::decode(dtype, bytes, out),
            None => avx2::decode(dtype, bytes, out),
        }
    }
}

/// Rows of weights, and what they are multiplied with.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[derive(Clone, Copy)]
struct Rows {
    w: *const u8,
    row_bytes: usize,
    x: *const f32,
    k: usize,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Rows {
    /// The rows from `r` on.
    fn from(self, r: usize) -> Rows {
        Rows { w: self.w.wrapping_add(r * self.row_bytes), ..self }
    }
}

/// Asks for what lies ahead of R rows, one behind another, of which the bytes at `at .. at + len` are read now: in the order of memory, whatever the order
/// of reading, so that the processor sees one stream.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_stream<const R: usize>(rows: *const u8, at: usize, len: usize) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    const AHEAD: usize = 8192;
    for line in (0..R * len).step_by(64) {
        // SAFETY: a prefetch reads nothing; any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(rows.wrapping_add(AHEAD + R * at + line).cast()) }
    }
}

/// Asks for the bytes that later rows have at the place of `p .. p + len` in the R rows of now: rows are too short for the
/// processor to see the pattern by itself, and short rows pass faster than memory answers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch<const R: usize>(p: *const u8, row_bytes: usize, len: usize) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let ahead = (R * row_bytes).max(8192);
    for at in (0..len).step_by(64) {
        // SAFETY: a prefetch reads nothing; any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(ahead + at).cast()) }
    }
}

/// Checks a caller's promise about `rows` rows of `k` weights; the unsafe kernels rely on it.
fn check_rows(path: Path, dtype: DType, w: &[u8], row_bytes: usize, rows: usize, k: usize) -> usize {
    assert!(path.is_available(), "the {} path needs a processor that has it", path.name());
    assert!(matches!(dtype, DType::F32 | DType::F16 | DType::BF16) || dtype.is_block(), "{dtype} is not a storage format of weights");
    let bytes = dtype.bytes(k).expect("rows hold whole blocks");
    let end = rows.saturating_sub(1).checked_mul(row_bytes).and_then(|start| start.checked_add(bytes));
    assert!(
        rows == 0 || (row_bytes >= bytes && end.is_some_and(|end| end <= w.len())),
        "{rows} rows of {k} {dtype} do not fit the weights"
    );
    bytes
}

/// Checks a caller's promise about `m` rows of `x` and of `y`, those of `y` `ldy` apart; gives the rows of weights, and the elements of each.
fn check_product(path: Path, dtype: DType, (w, row_bytes): (&[u8], usize), x: &[f32], y: &[f32], [m, ldy]: [usize; 2]) -> [usize; 2] {
    let k = x.len() / m;
    let rows = y.len().checked_sub((m - 1) * ldy).expect("y has m rows");
    assert!(x.len() == k * m && (m == 1 || rows <= ldy), "x has m whole rows, and the rows of y do not overlap");
    check_rows(path, dtype, w, row_bytes, rows, k);
    [rows, k]
}

/// `y[r] = sum_k w[r][k] * x[k]` for `y.len()` rows of `x.len()` weights, stored `row_bytes` apart in `dtype`: f32, f16, bf16
/// or a block format. The weights are exact, products and sums are f32.
///
/// # Panics
/// If the slices do not hold what the lengths say, or `dtype` is none of those: a caller's bug, never a user's input.
pub fn gemv(path: Path, dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32]) {
    check_rows(path, dtype, w, row_bytes, y.len(), x.len());
    #[cfg(target_arch = "x86_64")]
    let direct = dtype.coded().is_none();
    #[cfg(target_arch = "x86_64")]
    if let (Path::Avx2 | Path::Avx512, Some((coded, table))) = (path, dtype.coded().and_then(|f| Some((f, f.table?)))) {
        // SAFETY: the lengths and the processor's features were checked just above.
        unsafe { tables::gemv(coded, table, w, row_bytes, x, y) }
        return;
    }
    match path {
        // SAFETY: the lengths and the processor's features were checked just above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 if direct => unsafe { avx512::gemv(dtype, w, row_bytes, x, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 if direct => unsafe { avx2::gemv(dtype, w, row_bytes, x, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Path::Neon | Path::Dotprod | Path::I8mm | Path::Bf16 if !dtype.is_block() => unsafe { neon::gemv(dtype, w, row_bytes, x, y) },
        _ => {
            let rows = y.len();
            gemv_multi(path, dtype, w, row_bytes, x, y, [1, rows]);
        }
    }
}

/// The same weights against `m` rows of activations: `y[i][r] = sum_k w[r][k] * x[i][k]`, each weight decoded once. `x` is `[m][k]`
/// without gaps; `y` has `m` rows `ldy` apart, the last of them as long as there are weight rows.
///
/// # Panics
/// See [`gemv`].
pub fn gemv_multi(path: Path, dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32], [m, ldy]: [usize; 2]) {
    if m == 0 {
        return;
    }
    let [rows, k] = check_product(path, dtype, (w, row_bytes), x, y, [m, ldy]);
    // SAFETY: the lengths and the processor's features were checked just above.
    #[cfg(target_arch = "aarch64")]
    if path != Path::Plain && unsafe { split::block_products(path, dtype, w, row_bytes, x, y, [m, ldy]) } {
        return;
    }
    // SAFETY: as above.
    #[cfg(target_arch = "x86_64")]
    if path == Path::Avx2 && unsafe { avx2::gemv_multi(dtype, w, row_bytes, x, y, [m, ldy]) } {
        return;
    }
    // SAFETY: as above.
    #[cfg(target_arch = "x86_64")]
    if path == Path::Avx512 && unsafe { avx512::gemv_multi(dtype, w, row_bytes, x, y, [m, ldy]) } {
        return;
    }
    let Kernels { decode, tile } = path.kernels();
    let mut w2 = [[0f32; CHUNK]; 2];
    for r in (0..rows).step_by(2) {
        let two = (rows - r).min(2);
        for m0 in (0..m).step_by(4) {
            for i in m0..m.min(m0 + 4) {
                y[i * ldy + r..][..two].fill(0.0);
            }
        }
        for start in (0..k).step_by(CHUNK) {
            let len = (k - start).min(CHUNK);
            let (from, to) = (start / dtype.block() * dtype.block_bytes(), (start + len) / dtype.block() * dtype.block_bytes());
            for i in 0..two {
                #[cfg(target_arch = "x86_64")]
                prefetch::<2>(w.as_ptr().wrapping_add((r + i) * row_bytes + from), row_bytes, to - from);
                // SAFETY: the blocks of elements start .. start + len of a row; the features were checked.
                unsafe { decode(dtype, &w[(r + i) * row_bytes..][from..to], &mut w2[i][..len]) }
            }
            for m0 in (0..m).step_by(4) {
                let mut sums = [[0f32; 4]; 2];
                let m4 = (m - m0).min(4);
                // SAFETY: m4 rows of x from m0 on, k apart, hold elements start .. start + len; the features were checked.
                unsafe { tile(&w2, len, &x[m0 * k + start..], k, m4, &mut sums) }
                for i in 0..m4 {
                    for (j, sums) in sums[..two].iter().enumerate() {
                        y[(m0 + i) * ldy + r + j] += sums[i];
                    }
                }
            }
        }
    }
}

/// [`gemv_multi`] with weights of bf16 and activations that bf16 holds too. Where the path multiplies pairs of bf16, sums are rounded as its
/// instruction does, and subnormal numbers count as zero; elsewhere they are those of the other functions.
///
/// # Panics
/// See [`gemv`].
pub fn gemv_bf16(path: Path, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32], [m, ldy]: [usize; 2]) {
    #[cfg(target_arch = "aarch64")]
    if path == Path::Bf16 && m > 0 {
        check_product(path, DType::BF16, (w, row_bytes), x, y, [m, ldy]);
        // SAFETY: the lengths and the processor's features were checked just above.
        return unsafe { bf16::products(w, row_bytes, x, y, [m, ldy]) };
    }
    match m {
        1 => gemv(path, DType::BF16, w, row_bytes, x, y),
        _ => gemv_multi(path, DType::BF16, w, row_bytes, x, y, [m, ldy]),
    }
}

/// Decodes `out.len()` elements.
///
/// # Panics
/// See [`gemv`].
pub fn dequantize(path: Path, dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let len = check_rows(path, dtype, bytes, bytes.len(), 1, out.len());
    // SAFETY: the length and the processor's features were checked just above.
    unsafe { (path.kernels().decode)(dtype, &bytes[..len], out) }
}
