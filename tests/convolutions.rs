//! Convolutions of random settings, transposed or not: results and gradients against plain loops in f64, and a bound on the work.
//!
//! It is a program of its own since it bounds the time of a gradient.

mod common;
mod conformance_support;

use conformance_support::{devices, noise};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tensorlogic::eval::eval_all;
use tensorlogic::ops::convolution::{ConvOptions, WindowOptions};
use tensorlogic::{Device, Tensor, TensorResult};

/// No case may take longer, on the software driver and in a build for debugging.
const MAX_CASE_TIME: Duration = Duration::from_secs(5);

/// Elements that the steps of a case may read and write for each product of a weight and an element of a window. The forward pass and both
/// gradients are three times the products; windows are read, products are written and summed.
const ELEMENTS_PER_PRODUCT: f64 = 32.0;

/// A convolution: sizes and settings of each dimension behind the channels.
#[derive(Clone, Debug)]
struct Case {
    transposed: bool,
    batch: usize,
    groups: usize,
    /// Channels of the input and of the output in each group.
    channels: [usize; 2],
    size: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<(usize, usize)>,
    dilation: Vec<usize>,
    output_padding: Vec<usize>,
}

/// What a case computes, from f64 to f64: the result, and for a gradient of it those of the input and of the weight.
struct Values {
    y: Vec<f64>,
    dx: Vec<f64>,
    dw: Vec<f64>,
}

impl Case {
    fn shape_x(&self) -> Vec<usize> {
        [&[self.batch, self.groups * self.channels[0]], &self.size[..]].concat()
    }
    fn shape_w(&self) -> Vec<usize> {
        let [inner, own] = self.channels;
        let lead = if self.transposed { [self.groups * inner, own] } else { [self.groups * own, inner] };
        [&lead, &self.kernel[..]].concat()
    }
    /// Sizes of the result behind the channels, by PyTorch's formulas.
    fn places(&self) -> Vec<isize> {
        let size = |d: usize| {
            let reach = (self.dilation[d] * (self.kernel[d] - 1)) as isize;
            let (size, stride, cut) = (self.size[d] as isize, self.stride[d] as isize, (self.padding[d].0 + self.padding[d].1) as isize);
            match self.transposed {
                true => (size - 1) * stride - cut + reach + self.output_padding[d] as isize + 1,
                false => (size + cut - reach - 1).div_euclid(stride) + 1,
            }
        };
        (0..self.size.len()).map(size).collect()
    }
    fn shape_y(&self) -> Vec<usize> {
        let places = self.places().into_iter().map(|n| n as usize);
        [self.batch, self.groups * self.channels[1]].into_iter().chain(places).collect()
    }
    /// Products of the forward pass where each result gathers its window.
    fn products(&self) -> usize {
        self.shape_y().iter().product::<usize>() * self.channels[0] * self.kernel.iter().product::<usize>()
    }
    fn options(&self) -> ConvOptions {
        let windows =
            WindowOptions { stride: self.stride.clone(), padding: self.padding.clone(), dilation: self.dilation.clone(), ceil: false };
        let output_padding = if self.transposed { self.output_padding.clone() } else { vec![] };
        ConvOptions { windows, groups: self.groups, output_padding }
    }

    /// The definition. A convolution sums over places `q = p·stride - padding + t·dilation` of its input for place `p` of its result and tap
    /// `t`; a transposed one has its input at `p` and its result at `q`.
    fn reference(&self, x: &[f64], w: &[f64], dy: &[f64]) -> Values {
        let (shape_x, shape_y) = (self.shape_x(), self.shape_y());
        let count = |s: &[usize]| s.iter().product::<usize>();
        let mut out = Values { y: vec![0.0; dy.len()], dx: vec![0.0; x.len()], dw: vec![0.0; w.len()] };
        let (small, large) = if self.transposed { (&shape_x[2..], &shape_y[2..]) } else { (&shape_y[2..], &shape_x[2..]) };
        let [inner, own] = self.channels;
        // Pairs of a place `p` and a place `q` with the tap that joins them.
        let mut joined = Vec::new();
        for p in 0..count(small) {
            for t in 0..count(&self.kernel) {
                let (mut p_rest, mut t_rest, mut q, mut step, mut inside) = (p, t, 0, 1, true);
                for d in (0..self.size.len()).rev() {
                    let (i, k) = (p_rest % small[d], t_rest % self.kernel[d]);
                    (p_rest, t_rest) = (p_rest / small[d], t_rest / self.kernel[d]);
                    let at = (i * self.stride[d] + k * self.dilation[d]) as isize - self.padding[d].0 as isize;
                    inside &= at >= 0 && at < large[d] as isize;
                    q += at * step;
                    step *= large[d] as isize;
                }
                if inside {
                    joined.push((p, q as usize, t));
                }
            }
        }
        let (nx, ny, taps) = (count(&shape_x[2..]), count(&shape_y[2..]), count(&self.kernel));
        for n in 0..self.batch {
            for g in 0..self.groups {
                for (c, o) in (0..inner).flat_map(|c| (0..own).map(move |o| (c, o))) {
                    let cx = ((n * self.groups + g) * inner + c) * nx;
                    let cy = ((n * self.groups + g) * own + o) * ny;
                    let cw = if self.transposed { ((g * inner + c) * own + o) * taps } else { ((g * own + o) * inner + c) * taps };
                    for &(p, q, t) in &joined {
                        let (ix, iy) = if self.transposed { (cx + p, cy + q) } else { (cx + q, cy + p) };
                        out.y[iy] += x[ix] * w[cw + t];
                        out.dx[ix] += dy[iy] * w[cw + t];
                        out.dw[cw + t] += dy[iy] * x[ix];
                    }
                }
            }
        }
        out
    }

    fn run(&self, x: &[f64], w: &[f64], dy: &[f64], device: &Device) -> TensorResult<[Vec<f32>; 3]> {
        let make = |v: &[f64], s: &[usize]| Tensor::from_vec(v.iter().map(|&v| v as f32).collect(), s, device);
        let (x, w) = (make(x, &self.shape_x())?.requires_grad()?, make(w, &self.shape_w())?.requires_grad()?);
        let y = if self.transposed { x.conv_transpose(&w, None, &self.options()) } else { x.conv(&w, None, &self.options()) }?;
        assert_eq!(y.dims(), self.shape_y());
        y.backward_with(&make(dy, &self.shape_y())?, true)?;
        let (dx, dw) = (x.grad().expect("x is tracked"), w.grad().expect("w is tracked"));
        eval_all(&[&y, &dx, &dw])?;
        Ok([y.to_vec()?, dx.to_vec()?, dw.to_vec()?])
    }
}

/// Computes a case on every device; compares the values with the definition, and the work with what the case needs.
#[track_caller]
fn check(case: &Case) {
    // A device can be measured once at a time.
    static MEASURED: Mutex<()> = Mutex::new(());
    let _alone = MEASURED.lock().unwrap_or_else(|e| e.into_inner());
    let count = |s: &[usize]| s.iter().product::<usize>();
    let values =
        |s: Vec<usize>, seed: u64| noise(count(&s), seed).into_iter().map(|v| f64::from((2.0 * v - 1.0) as f32)).collect::<Vec<_>>();
    let (x, w, dy) = (values(case.shape_x(), 1), values(case.shape_w(), 2), values(case.shape_y(), 3));
    let want = case.reference(&x, &w, &dy);
    for device in devices() {
        let name = format!("{case:?} on {}", device.name());
        let run = || {
            let began = Instant::now();
            let measured = device.profile(|| case.run(&x, &w, &dy, &device));
            let (got, profile) = measured.unwrap_or_else(|e| panic!("{name}: {e}"));
            (got, profile, began.elapsed())
        };
        let (got, profile, mut took) = run();
        if took >= MAX_CASE_TIME {
            // A busy machine compiles slowly; the second run has its kernels.
            took = run().2;
        }
        for (what, got, want) in [("result", &got[0], &want.y), ("gradient of x", &got[1], &want.dx), ("gradient of w", &got[2], &want.dw)]
        {
            assert_eq!(got.len(), want.len(), "{name}: {what}");
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            for (i, (&g, &w)) in got.iter().zip(want.iter()).enumerate() {
                assert!((f64::from(g) - w).abs() <= 1e-4 * scale, "{name}: element {i} of the {what} is {g}, not {w}");
            }
        }
        let moved = profile.rows().iter().map(|r| r.bytes / 4).sum::<u64>() as f64;
        let sizes = count(&case.shape_x()) + count(&case.shape_w()) + count(&case.shape_y());
        let needed = (case.products() + sizes) as f64;
        println!("{:6.1} elements for each product, {took:?}: {name}", moved / needed);
        assert!(moved <= ELEMENTS_PER_PRODUCT * needed, "{name}: {moved} elements are moved for {needed} products\n{profile}");
        // A GPU looks through all indices for each row of a table: elements times elements.
        assert!(profile.rows().iter().all(|r| !r.op.starts_with("index_add")), "{name}: windows by index\n{profile}");
        assert!(took < MAX_CASE_TIME, "{name}: {took:?}\n{profile}");
    }
}

#[test]
fn the_gradient_of_many_taps_in_three_dimensions() {
    check(&Case {
        transposed: true,
        batch: 2,
        groups: 2,
        channels: [1, 2],
        size: vec![4, 4, 4],
        kernel: vec![4, 5, 6],
        stride: vec![3, 2, 1],
        padding: vec![(1, 1), (2, 2), (3, 3)],
        dilation: vec![4, 4, 4],
        output_padding: vec![2, 3, 1],
    });
}

/// Choices that look random and are the same every time.
struct Dice(u64);
impl Dice {
    /// A number from `low` to `high`.
    fn roll(&mut self, low: usize, high: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        low + ((self.0 >> 33) as usize) % (high - low + 1)
    }
}

impl Case {
    /// Products of a random case at most: the definition takes as many steps.
    const MAX_PRODUCTS: usize = 400_000;

    /// A case by the dice; `None` where the settings leave no result or make too many products.
    fn random(dice: &mut Dice) -> Option<Case> {
        let dims = dice.roll(1, 3);
        let transposed = dice.roll(0, 1) == 1;
        let mut each = |low: usize, high: usize| (0..dims).map(|_| dice.roll(low, high)).collect::<Vec<_>>();
        let (size, stride, dilation) = (each(1, [40, 12, 6][dims - 1]), each(1, 4), each(1, 4));
        let kernel = each(1, [20, 9, 6][dims - 1]);
        let padding = each(0, 3).into_iter().zip(each(0, 3)).collect();
        let output_padding = each(0, 3).into_iter().zip(stride.iter().zip(&dilation)).map(|(o, (&s, &d))| o.min(s.max(d) - 1)).collect();
        let (batch, groups, channels) = (dice.roll(1, 2), dice.roll(1, 3), [dice.roll(1, 3), dice.roll(1, 3)]);
        let case = Case { transposed, batch, groups, channels, size, kernel, stride, padding, dilation, output_padding };
        (case.places().iter().all(|&n| n > 0) && case.products() <= Case::MAX_PRODUCTS).then_some(case)
    }
}

#[test]
fn random_settings() {
    // Another seed tries other cases: TL_SEED=7 cargo test --test convolutions random
    let seed = std::env::var("TL_SEED").ok().map_or(1, |s| s.parse().expect("TL_SEED is a number"));
    println!("TL_SEED={seed}");
    let mut dice = Dice(seed);
    for _ in 0..60 {
        let case = std::iter::repeat_with(|| Case::random(&mut dice)).flatten().next().expect("one of them is possible");
        check(&case);
    }
}
