//! Resizing of images with the filters, the rounding and the order of passes of PIL's `Image.resize`.

/// How levels between pixels are found, by the numbers that `resample` has in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resample {
    /// 0: the nearest pixel.
    Nearest,
    /// 1: the sine over its argument, windowed, of three lobes.
    Lanczos,
    /// 2: a triangle.
    Bilinear,
    /// 3: a cubic convolution (Keys, 1981) with a = −0.5.
    Bicubic,
    /// 4: the mean of the pixels below.
    Box,
    /// 5: the sine over its argument with Hamming's window, of one lobe.
    Hamming,
}

impl Resample {
    /// The filter of this number.
    pub(super) fn of(number: u64) -> Option<Resample> {
        const ALL: [Resample; 6] =
            [Resample::Nearest, Resample::Lanczos, Resample::Bilinear, Resample::Bicubic, Resample::Box, Resample::Hamming];
        ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Up to which distance the filter is not zero.
    fn support(self) -> f64 {
        match self {
            Resample::Nearest => 0.0,
            Resample::Lanczos => 3.0,
            Resample::Bilinear | Resample::Hamming => 1.0,
            Resample::Bicubic => 2.0,
            Resample::Box => 0.5,
        }
    }

    /// The weight of a pixel at this distance.
    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
        let distance = x.abs();
        match self {
            Resample::Nearest => 0.0,
            Resample::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Resample::Bilinear if distance < 1.0 => 1.0 - distance,
            Resample::Bicubic if distance < 1.0 => ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0,
            Resample::Bicubic if distance < 2.0 => (((distance - 5.0) * distance + 8.0) * distance - 4.0) * A,
            Resample::Box if x > -0.5 && x <= 0.5 => 1.0,
            Resample::Hamming if distance < 1.0 => sinc(distance) * (0.54 + 0.46 * (distance * std::f64::consts::PI).cos()),
            _ => 0.0,
        }
    }
}

/// Bits of a weight behind the point: what 32 bits leave beside 8 of a level and 2 for sums that go beyond.
const PRECISION: u32 = 32 - 8 - 2;

/// The pixels that a pixel of the result is computed from: the first, and the weights of it and of those behind.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// The taps of each of `to` pixels of a line of `from`. When there are fewer than before, the filter is as much wider.
fn taps(from: usize, to: usize, filter: Resample) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let widened = scale.max(1.0);
    let (support, factor) = (filter.support() * widened, 1.0 / widened);
    let fixed = |weight: f64| (weight * f64::from(1 << PRECISION) + 0.5f64.copysign(weight)) as i32;
    let of = |place: usize| {
        let center = (place as f64 + 0.5) * scale;
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weights: Vec<f64> = (first..end).map(|i| filter.weight((i as f64 - center + 0.5) * factor)).collect();
        let sum: f64 = weights.iter().sum();
        let whole = if sum == 0.0 { 1.0 } else { sum };
        Taps { first, weights: weights.into_iter().map(|w| fixed(w / whole)).collect() }
    };
    (0..to).map(of).collect()
}

/// A level from a sum of weighted ones.
fn level(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// What a sum begins with, so that it is rounded to the nearest.
const HALF: i32 = 1 << (PRECISION - 1);

/// Levels `[height,width,3]` in another size: first along rows, then along columns, each rounded to 8 bits.
pub(super) fn resize(levels: &[u8], [height, width]: [usize; 2], to: [usize; 2], filter: Resample) -> Vec<u8> {
    if filter == Resample::Nearest {
        return nearest(levels, [height, width], to);
    }
    let across = if width == to[1] { levels.to_vec() } else { along_rows(levels, width, &taps(width, to[1], filter)) };
    if height == to[0] { across } else { along_columns(&across, 3 * to[1], &taps(height, to[0], filter)) }
}

fn along_rows(levels: &[u8], width: usize, taps: &[Taps]) -> Vec<u8> {
    let mut out = Vec::with_capacity(levels.len() / width * taps.len());
    for row in levels.chunks_exact(3 * width) {
        for t in taps {
            let mut sums = [HALF; 3];
            for (pixel, &weight) in row[3 * t.first..].chunks_exact(3).zip(&t.weights) {
                sums.iter_mut().zip(pixel).for_each(|(sum, &v)| *sum += i32::from(v) * weight);
            }
            out.extend(sums.map(level));
        }
    }
    out
}

fn along_columns(levels: &[u8], row: usize, taps: &[Taps]) -> Vec<u8> {
    let mut out = Vec::with_capacity(row * taps.len());
    let mut sums = vec![HALF; row];
    for t in taps {
        sums.fill(HALF);
        for (line, &weight) in levels[row * t.first..].chunks_exact(row).zip(&t.weights) {
            sums.iter_mut().zip(line).for_each(|(sum, &v)| *sum += i32::from(v) * weight);
        }
        out.extend(sums.iter().map(|&sum| level(sum)));
    }
    out
}

/// The pixels below the centres of those of the result. Centres are added up one by one, as PIL does, so that rounding falls on the same side;
/// a pixel that this carries over the edge stays black.
fn nearest(levels: &[u8], [height, width]: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    let places = |from: usize, to: usize| {
        let step = from as f64 / to as f64;
        let centers = std::iter::successors(Some(step * 0.5), move |at| Some(at + step));
        centers.take(to).map(|at| Some(at as usize).filter(|&i| i < from)).collect::<Vec<_>>()
    };
    let columns = places(width, to[1]);
    let pixel = |row: Option<usize>, column: Option<usize>| match (row, column) {
        (Some(y), Some(x)) => [0, 1, 2].map(|c| levels[3 * (y * width + x) + c]),
        _ => [0; 3],
    };
    places(height, to[0]).into_iter().flat_map(|row| columns.iter().flat_map(move |&column| pixel(row, column))).collect()
}
