//! An operand in memory: where its elements lie, and moving runs of them to and from blocks of compute values.

use super::dot;
use super::lanes::round_bf16;
use super::path::{current, versions};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::shape::MAX_RANK;

/// A source or target bound to memory.
#[derive(Clone, Copy)]
pub(crate) struct StridedView<'a> {
    /// The buffer's first byte; null for `Buf::Iota`.
    pub base: *mut u8,
    /// The buffer's size.
    pub bytes: usize,
    /// The first element, run-time part included.
    pub first: usize,
    pub dtype: DType,
    pub kind: Kind,
    /// For a target: whether it is apart from all that the step reads, so that results may be written before all is read.
    pub apart: bool,
    layout: &'a Layout,
}

// SAFETY: views carry addresses between the threads of one run, which keeps the buffers alive and splits the writes.
unsafe impl Send for StridedView<'_> {}
// SAFETY: as above.
unsafe impl Sync for StridedView<'_> {}

/// How elements follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// In row-major order without gaps.
    Contiguous,
    /// One element again and again.
    Splat,
    /// Anything else.
    Strided,
}

/// What a layout says about memory, wherever it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressRange {
    kind: Kind,
    /// Elements before the first and after it.
    low: usize,
    high: usize,
    empty: bool,
}

impl AddressRange {
    /// `None` where the addresses overflow.
    pub(crate) fn of(layout: &Layout) -> Option<AddressRange> {
        let (mut low, mut high) = (0usize, 0usize);
        let (mut step, mut contiguous, mut splat) = (1isize, true, true);
        for (&d, &s) in layout.shape.iter().zip(layout.strides()).rev() {
            if d > 1 {
                let reach = s.checked_mul(d as isize - 1)?;
                let side = if reach < 0 { &mut low } else { &mut high };
                *side = side.checked_add(reach.unsigned_abs())?;
                contiguous &= s == step;
                splat &= s == 0;
                step = step.checked_mul(d as isize)?;
            }
        }
        let count = layout.shape.count();
        let kind = match () {
            _ if contiguous || count <= 1 => Kind::Contiguous,
            _ if splat => Kind::Splat,
            _ => Kind::Strided,
        };
        Some(AddressRange { kind, low, high, empty: count == 0 })
    }
}

impl<'a> StridedView<'a> {
    /// Binds a layout to memory. `None` where an element would lie outside the buffer.
    pub(crate) fn new(
        base: *mut u8,
        bytes: usize,
        dtype: DType,
        layout: &'a Layout,
        reach: &AddressRange,
        start: f64,
    ) -> Option<StridedView<'a>> {
        if !(0.0..=(isize::MAX / 16) as f64).contains(&start) {
            return None;
        }
        let first = layout.offset.checked_add(start as usize)?;
        if !reach.empty && !base.is_null() {
            let end = first.checked_add(reach.high)?.checked_add(1)?;
            if first < reach.low || end.div_ceil(dtype.block()).checked_mul(dtype.block_bytes())? > bytes {
                return None;
            }
        }
        Some(StridedView { base, bytes, first, dtype, kind: reach.kind, apart: false, layout })
    }

    /// Whether this and another operand may touch the same memory.
    pub(crate) fn may_overlap(&self, reach: &AddressRange, other: &StridedView<'_>, of_other: &AddressRange) -> bool {
        let (a, b) = (self.base as usize, other.base as usize);
        if self.base.is_null() || other.base.is_null() || a >= b + other.bytes || b >= a + self.bytes {
            return false;
        }
        let ((from, to), (start, end)) = (self.touched(reach), other.touched(of_other));
        from < end && start < to
    }

    /// The addresses of the first byte that may be touched and of the one behind the last.
    fn touched(&self, reach: &AddressRange) -> (usize, usize) {
        let (base, block, size) = (self.base as usize, self.dtype.block(), self.dtype.block_bytes());
        match reach.empty {
            true => (base, base),
            false => (base + (self.first - reach.low) / block * size, base + (self.first + reach.high + 1).div_ceil(block) * size),
        }
    }

    /// Sizes and strides, of which a strided view has at least one.
    #[inline(always)]
    fn dims(&self) -> (&'a [usize], &'a [isize]) {
        (self.layout.shape.dims(), self.layout.strides())
    }

    /// Whether elements lie in memory in the form that programs compute with.
    #[inline]
    pub(crate) fn direct(&self) -> bool {
        matches!(self.dtype, DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::U64) && !self.base.is_null()
    }

    /// The address of element `start`, where `n` elements from it on lie one after the other.
    #[inline]
    pub(crate) fn in_place(&self, start: usize, n: usize) -> Option<*mut u8> {
        let element = match self.kind {
            Kind::Contiguous => self.first + start,
            Kind::Splat => return (n == 1).then(|| self.at(self.first)),
            Kind::Strided => {
                let (dims, strides) = self.dims();
                let inner = dims[dims.len() - 1];
                if strides[dims.len() - 1] != 1 || start % inner + n > inner {
                    return None;
                }
                self.offset(start)
            }
        };
        Some(self.at(element))
    }

    #[inline]
    fn at(&self, element: usize) -> *mut u8 {
        self.base.wrapping_add(element * self.dtype.block_bytes())
    }

    /// The element with row-major index `i`.
    #[inline]
    fn offset(&self, mut i: usize) -> usize {
        let mut o = self.first as isize;
        let (dims, strides) = self.dims();
        for (&d, &s) in dims.iter().zip(strides).rev() {
            o += (i % d) as isize * s;
            i /= d;
        }
        o as usize
    }

    /// Calls `f(element, stride, done, len)` for each run of elements `start..start + n`.
    #[inline(always)]
    pub(crate) fn runs(&self, start: usize, n: usize, mut f: impl FnMut(usize, isize, usize, usize)) {
        match self.kind {
            Kind::Contiguous => f(self.first + start, 1, 0, n),
            Kind::Splat => f(self.first, 0, 0, n),
            Kind::Strided => {
                let (dims, strides) = self.dims();
                let mut index = [0usize; MAX_RANK];
                let mut o = self.first as isize;
                let mut i = start;
                for d in (0..dims.len()).rev() {
                    index[d] = i % dims[d];
                    i /= dims[d];
                    o += index[d] as isize * strides[d];
                }
                let last = dims.len() - 1;
                let mut done = 0;
                while done < n {
                    let len = (dims[last] - index[last]).min(n - done);
                    f(o as usize, strides[last], done, len);
                    done += len;
                    // On to the start of the next run.
                    o -= index[last] as isize * strides[last];
                    index[last] = 0;
                    for d in (0..last).rev() {
                        index[d] += 1;
                        o += strides[d];
                        if index[d] < dims[d] {
                            break;
                        }
                        o -= index[d] as isize * strides[d];
                        index[d] = 0;
                    }
                }
            }
        }
    }

    /// Decodes elements `start..start + n` into `out`, in the compute type.
    ///
    /// # Safety
    /// The elements must exist, nobody may write them meanwhile, and `out` must have room.
    pub(crate) unsafe fn fetch(&self, start: usize, n: usize, out: *mut u8) {
        let width = if super::lanes::wide(self.dtype) { 8 } else { 4 };
        self.runs(start, n, |element, stride, done, len| {
            // SAFETY: runs stay within the elements that the caller vouches for, and `done + len` within `n`.
            unsafe { self.fetch_run(element, stride, len, out.add(done * width)) }
        });
    }

    /// # Safety
    /// Like `fetch`, for `len` elements from `element` on.
    unsafe fn fetch_run(&self, element: usize, stride: isize, len: usize, out: *mut u8) {
        if self.base.is_null() {
            // SAFETY: `out` has room for `len` u32.
            let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u32>(), len) };
            for (i, o) in out.iter_mut().enumerate() {
                *o = (element as isize + i as isize * stride) as u32;
            }
            return;
        }
        // SAFETY (of all calls): the elements exist in the type that the dtype names, and `out` has room.
        unsafe {
            match self.dtype {
                DType::F32 | DType::I32 | DType::U32 => copy_run::<u32>(self.base, element, stride, len, out),
                DType::F64 | DType::I64 | DType::U64 => copy_run::<u64>(self.base, element, stride, len, out),
                DType::I8 => convert_run::<i8, i32>(self.base, element, stride, len, out, |x| x as i32),
                DType::U8 => convert_run::<u8, i32>(self.base, element, stride, len, out, |x| x as i32),
                DType::I16 => convert_run::<i16, i32>(self.base, element, stride, len, out, |x| x as i32),
                DType::U16 => convert_run::<u16, i32>(self.base, element, stride, len, out, |x| x as i32),
                DType::Bool => convert_run::<u8, u32>(self.base, element, stride, len, out, |x| (x != 0) as u32),
                DType::F16 if stride != 1 => {
                    convert_run::<u16, f32>(self.base, element, stride, len, out, |x| half::f16::from_bits(x).to_f32())
                }
                DType::BF16 if stride != 1 => {
                    convert_run::<u16, f32>(self.base, element, stride, len, out, |x| f32::from_bits((x as u32) << 16))
                }
                _ => self.decode_run(element, stride, len, std::slice::from_raw_parts_mut(out.cast(), len)),
            }
        }
    }

    /// # Safety
    /// Like `fetch_run`, for dtypes that `dot` decodes.
    unsafe fn decode_run(&self, element: usize, stride: isize, len: usize, out: &mut [f32]) {
        let (block, size) = (self.dtype.block(), self.dtype.block_bytes());
        let blocks = |first: usize, count: usize| {
            // SAFETY: the blocks hold elements that the caller vouches for.
            unsafe { std::slice::from_raw_parts(self.base.add(first * size), count * size) }
        };
        let mut one = [0f32; 256];
        if stride == 1 {
            let mut done = 0;
            while done < len {
                let (b, within) = ((element + done) / block, (element + done) % block);
                let whole = (len - done) / block;
                if within == 0 && whole > 0 {
                    dot::dequantize(current(), self.dtype, blocks(b, whole), &mut out[done..done + whole * block]);
                    done += whole * block;
                } else {
                    let take = (block - within).min(len - done);
                    dot::dequantize(current(), self.dtype, blocks(b, 1), &mut one[..block]);
                    out[done..done + take].copy_from_slice(&one[within..within + take]);
                    done += take;
                }
            }
        } else {
            let mut last = usize::MAX;
            for (i, o) in out.iter_mut().enumerate() {
                let e = (element as isize + i as isize * stride) as usize;
                if e / block != last {
                    last = e / block;
                    dot::dequantize(current(), self.dtype, blocks(last, 1), &mut one[..block]);
                }
                *o = one[e % block];
            }
        }
    }

    /// Rounds compute values to the dtype and writes them as elements `start..start + n`.
    ///
    /// # Safety
    /// The elements must exist and nobody else may touch them meanwhile; `values` must hold `n` values.
    pub(crate) unsafe fn put(&self, start: usize, n: usize, values: *const u8) {
        let width = if super::lanes::wide(self.dtype) { 8 } else { 4 };
        self.runs(start, n, |element, stride, done, len| {
            // SAFETY: as in `fetch`.
            unsafe {
                let from = values.add(done * width);
                match self.dtype {
                    DType::F32 | DType::I32 | DType::U32 => write_run::<u32, u32>(self.base, element, stride, len, from, |x| x),
                    DType::F64 | DType::I64 | DType::U64 => write_run::<u64, u64>(self.base, element, stride, len, from, |x| x),
                    DType::I8 | DType::U8 => write_run::<i32, u8>(self.base, element, stride, len, from, |x| x as u8),
                    DType::I16 | DType::U16 => write_run::<i32, u16>(self.base, element, stride, len, from, |x| x as u16),
                    DType::Bool => write_run::<u32, u8>(self.base, element, stride, len, from, |x| (x != 0) as u8),
                    DType::BF16 if stride == 1 => {
                        let to = std::slice::from_raw_parts_mut(self.base.cast::<u16>().add(element), len);
                        to_bf16(std::slice::from_raw_parts(from.cast(), len), to);
                    }
                    DType::BF16 => write_run::<f32, u16>(self.base, element, stride, len, from, round_bf16),
                    DType::F16 if stride == 1 => {
                        let to = std::slice::from_raw_parts_mut(self.base.cast::<u16>().add(element), len);
                        to_f16(std::slice::from_raw_parts(from.cast(), len), to);
                    }
                    DType::F16 => write_run::<f32, u16>(self.base, element, stride, len, from, |x| half::f16::from_f32(x).to_bits()),
                    // Nothing writes block formats; the builders of graphs refuse it.
                    _ => {}
                }
            }
        });
    }

    /// Copies elements to another view of the same plain dtype, bit by bit, where both lie in runs. `false` where they do not.
    ///
    /// # Safety
    /// Like `fetch` for `self` and `put` for `to`.
    pub(crate) unsafe fn copy_to(&self, to: &StridedView<'_>, start: usize, n: usize) -> bool {
        if self.dtype != to.dtype || self.dtype.is_block() || self.base.is_null() {
            return false;
        }
        let size = self.dtype.block_bytes();
        let rows = |s: &StridedView| s.dims().1.last() == Some(&1) && s.dims().0.last().is_some_and(|&d| d >= 16);
        let long = |s: &StridedView| s.kind == Kind::Contiguous || (s.kind == Kind::Strided && rows(s));
        if !long(self) || !long(to) {
            return false;
        }
        to.runs(start, n, |into, _, done, len| {
            self.runs(start + done, len, |from, _, sub, part| {
                // SAFETY: both runs are of stride 1 and lie within what the caller vouches for. An element may be copied onto itself.
                unsafe { std::ptr::copy(self.base.add(from * size), to.base.add((into + sub) * size), part * size) }
            });
        });
        true
    }
}

impl StridedView<'_> {
    /// Copies all elements to a row-major view of the same plain dtype where the innermost dimension here is another one than there:
    /// this thread's share. `false` where the layouts are not like that.
    ///
    /// # Safety
    /// Like `copy_to`; the views must not overlap.
    pub(crate) unsafe fn transpose_to(&self, to: &StridedView<'_>, thread: usize, threads: usize) -> bool {
        /// Columns of a share: their lines are read by one thread.
        const COLUMNS_PER_SHARE: usize = 64;
        if self.kind != Kind::Strided
            || to.kind != Kind::Contiguous
            || self.dtype != to.dtype
            || self.dtype.is_block()
            || self.base.is_null()
        {
            return false;
        }
        let (dims, strides) = self.dims();
        let (last, size) = (dims.len() - 1, self.dtype.block_bytes());
        let Some(inner) = (0..last).find(|&d| strides[d] == 1) else { return false };
        if dims[inner] < 8 || dims[last] < 8 {
            return false;
        }
        let mut target = [1isize; MAX_RANK];
        for d in (0..last).rev() {
            target[d] = target[d + 1] * dims[d + 1] as isize;
        }
        let shares = dims[inner].div_ceil(COLUMNS_PER_SHARE);
        let others = (0..last).filter(|&d| d != inner);
        let matrices: usize = others.clone().map(|d| dims[d]).product();
        for item in super::share(matrices * shares, 1, thread, threads) {
            let first = item % shares * COLUMNS_PER_SHARE;
            let (mut from, mut into) = (self.first as isize + first as isize, to.first as isize + first as isize * target[inner]);
            let mut rest = item / shares;
            for d in others.clone().rev() {
                from += (rest % dims[d]) as isize * strides[d];
                into += (rest % dims[d]) as isize * target[d];
                rest /= dims[d];
            }
            let (from, into) = (self.base.wrapping_add(from as usize * size), to.base.wrapping_add(into as usize * size));
            let cols = COLUMNS_PER_SHARE.min(dims[inner] - first);
            // SAFETY: the matrix is a part of both views, which the caller vouches for.
            unsafe { super::transpose(size, from, strides[last], into, target[inner], dims[last], cols) };
        }
        true
    }
}

/// Copies without filling the caches, for results too large to stay in them. Needs `finish_streaming` before others read them.
///
/// # Safety
/// `bytes` must lie at both addresses, apart from each other.
pub(crate) unsafe fn stream_copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if current() != super::path::Path::Plain {
            return stream_copy_avx(from, to, bytes);
        }
        std::ptr::copy_nonoverlapping(from, to, bytes);
    }
}

/// # Safety
/// See `stream_copy`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream_copy_avx(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::*;
    let head = to.align_offset(32).min(bytes);
    let vectors = (bytes - head) / 32;
    // SAFETY: head, vectors and tail make up the range; the streamed addresses are aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for i in 0..vectors {
            _mm256_stream_ps(to.add(head + 32 * i).cast(), _mm256_loadu_ps(from.add(head + 32 * i).cast()));
        }
        let done = head + 32 * vectors;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
    }
}

/// Makes streamed copies visible before what this thread writes next.
pub(crate) fn finish_streaming() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of the x86-64 base.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// # Safety
/// `len` elements of T, `stride` apart from `element` on, must exist, and `out` must have room for them.
#[inline(always)]
unsafe fn copy_run<T: Copy>(base: *const u8, element: usize, stride: isize, len: usize, out: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let from = base.cast::<T>().add(element);
        if stride == 1 {
            // An identity may copy a block onto itself.
            std::ptr::copy(from, out.cast::<T>(), len);
        } else {
            convert_run::<T, T>(base, element, stride, len, out, |x| x);
        }
    }
}

/// # Safety
/// Like `copy_run`; `out` must have room for `len` U.
#[inline(always)]
unsafe fn convert_run<T: Copy, U: Copy>(base: *const u8, element: usize, stride: isize, len: usize, out: *mut u8, f: impl Fn(T) -> U) {
    // SAFETY: the caller's promise.
    unsafe {
        let from = base.cast::<T>().add(element);
        let out = std::slice::from_raw_parts_mut(out.cast::<U>(), len);
        match stride {
            0 => out.fill(f(*from)),
            1 => {
                for (o, &x) in out.iter_mut().zip(std::slice::from_raw_parts(from, len)) {
                    *o = f(x);
                }
            }
            _ => {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = f(*from.offset(i as isize * stride));
                }
            }
        }
    }
}

/// # Safety
/// `values` must hold `len` T; `len` elements of U, `stride` apart from `element` on, must exist and be nobody else's.
#[inline(always)]
unsafe fn write_run<T: Copy, U: Copy>(base: *mut u8, element: usize, stride: isize, len: usize, values: *const u8, f: impl Fn(T) -> U) {
    // SAFETY: the caller's promise.
    unsafe {
        let to = base.cast::<U>().add(element);
        let values = std::slice::from_raw_parts(values.cast::<T>(), len);
        if stride == 1 {
            for (o, &x) in std::slice::from_raw_parts_mut(to, len).iter_mut().zip(values) {
                *o = f(x);
            }
        } else {
            for (i, &x) in values.iter().enumerate() {
                *to.offset(i as isize * stride) = f(x);
            }
        }
    }
}

versions! {
    /// Rounds to bf16.
    pub(crate) fn to_bf16(from: &[f32], to: &mut [u16]) = to_bf16_body;
}

#[inline(always)]
fn to_bf16_body<const F: bool>(from: &[f32], to: &mut [u16]) {
    for (o, &x) in to.iter_mut().zip(from) {
        *o = round_bf16(x);
    }
}

/// Rounds to f16.
pub(crate) fn to_f16(from: &[f32], to: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    if current() == super::path::Path::Avx512 {
        // SAFETY: the path includes the instructions.
        return unsafe { to_f16_avx512(from, to) };
    }
    #[cfg(target_arch = "x86_64")]
    if current() != super::path::Path::Plain {
        // SAFETY: both vector paths include F16C.
        return unsafe { to_f16_f16c(from, to) };
    }
    #[cfg(target_arch = "aarch64")]
    if current() != super::path::Path::Plain {
        return to_f16_neon(from, to);
    }
    to_f16_plain(from, to);
}

#[cfg(target_arch = "aarch64")]
fn to_f16_neon(from: &[f32], to: &mut [u16]) {
    use std::arch::aarch64::*;
    let (from4, rest) = from.as_chunks::<4>();
    for (x, o) in from4.iter().zip(to.as_chunks_mut::<4>().0) {
        // SAFETY: both chunks are whole; NEON is part of the architecture.
        unsafe { vst1_u16(o.as_mut_ptr(), vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x.as_ptr())))) };
    }
    to_f16_plain(rest, &mut to[from4.len() * 4..]);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn to_f16_avx512(from: &[f32], to: &mut [u16]) {
    use std::arch::x86_64::*;
    let (from16, rest) = from.as_chunks::<16>();
    let (to16, to_rest) = to.split_at_mut(from16.len() * 16);
    let half = |x| _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
    // SAFETY: chunks are whole; the mask keeps the last accesses inside the slices.
    unsafe {
        for (x, o) in from16.iter().zip(to16.as_chunks_mut::<16>().0) {
            _mm256_storeu_si256(o.as_mut_ptr().cast(), half(_mm512_loadu_ps(x.as_ptr())));
        }
        let mask = ((1u32 << rest.len()) - 1) as u16;
        _mm256_mask_storeu_epi16(to_rest.as_mut_ptr().cast(), mask, half(_mm512_maskz_loadu_ps(mask, rest.as_ptr())));
    }
}

fn to_f16_plain(from: &[f32], to: &mut [u16]) {
    for (o, &x) in to.iter_mut().zip(from) {
        *o = half::f16::from_f32(x).to_bits();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
fn to_f16_f16c(from: &[f32], to: &mut [u16]) {
    use std::arch::x86_64::*;
    let (from8, rest) = from.as_chunks::<8>();
    for (x, o) in from8.iter().zip(to.as_chunks_mut::<8>().0) {
        // SAFETY: both chunks are whole; the unaligned forms are used.
        unsafe { _mm_storeu_si128(o.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr()))) };
    }
    to_f16_plain(rest, &mut to[from8.len() * 8..]);
}
