//! An image pipeline: stack, normalize, extract features, unstack. It tells in which direction the stripes of synthetic pictures run.
//!
//! `cargo run --release --example image_pipeline`; `TL_DEVICE=cpu` (or `gpu`, `vulkan`, `metal`) chooses the device.

use std::f64::consts::PI;
use std::time::Instant;
use tensorlogic::eval::eval_all;
use tensorlogic::{Device, Tensor, TensorResult};

/// Height and width of a picture in pixels.
const SIZE: usize = 64;
/// Height and width of a patch.
const PATCH: usize = 8;
/// Directions that are told apart, 45° from one to the next.
const DIRECTIONS: usize = 4;
/// Pixels of one period of the stripes.
const PERIOD: f64 = 5.0;

/// How far along direction `d` the pixel lies, in radians of the stripes.
fn phase(d: usize, y: usize, x: usize) -> f64 {
    let angle = d as f64 * PI / DIRECTIONS as f64;
    (x as f64 * angle.cos() + y as f64 * angle.sin()) * 2.0 * PI / PERIOD
}

/// Picture number `n`, `[H, W, C]` in u8: stripes in direction `n % 4`, of a shift, colours and noise that depend on `n`.
fn picture(n: usize) -> Vec<u8> {
    let mut state = n as u64 + 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let shift = random() * 2.0 * PI;
    let colour = [0.4 + 0.6 * random(), 0.4 + 0.6 * random(), 0.4 + 0.6 * random()];
    let mut out = Vec::with_capacity(SIZE * SIZE * 3);
    for y in 0..SIZE {
        for x in 0..SIZE {
            for c in colour {
                let stripe = 0.5 + 0.25 * (phase(n % DIRECTIONS, y, x) + shift).sin() * c;
                out.push((255.0 * (stripe + 0.4 * (random() - 0.5))) as u8);
            }
        }
    }
    out
}

/// A bank of filters over patches, and how pictures are normalized for it.
struct Model {
    /// `[8 · 8 · 3, 2 · 4]`: the sine and the cosine of each direction's stripes.
    filters: Tensor,
    /// 1 / (255 · deviation) of each channel.
    scale: Tensor,
    /// −mean / deviation of each channel.
    bias: Tensor,
}

impl Model {
    fn new(device: &Device) -> TensorResult<Model> {
        let mut filters = Vec::new();
        for pixel in 0..PATCH * PATCH * 3 {
            let (y, x) = (pixel / 3 / PATCH, pixel / 3 % PATCH);
            for d in 0..DIRECTIONS {
                filters.extend([phase(d, y, x).sin() as f32 / 8.0, phase(d, y, x).cos() as f32 / 8.0]);
            }
        }
        let (mean, deviation) = (0.5f32, 0.2f32);
        let float = device.default_float();
        let make = |v: Vec<f32>, shape: &[usize]| Tensor::from_vec(v, shape, device)?.cast(float);
        let model = Model {
            filters: make(filters, &[PATCH * PATCH * 3, 2 * DIRECTIONS])?,
            scale: make(vec![1.0 / (255.0 * deviation); 3], &[3])?,
            bias: make(vec![-mean / deviation; 3], &[3])?,
        };
        eval_all(&[&model.filters, &model.scale, &model.bias])?;
        Ok(model)
    }

    /// Normalized pictures `[N, H, W, C]` to the energy of each direction `[N, 4]`.
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let (n, side) = (x.dims()[0], SIZE / PATCH);
        let patches = x.reshape([n, side, PATCH, side, PATCH, 3])?.permute(&[0, 1, 3, 2, 4, 5])?;
        let patches = patches.reshape((n, side * side, ()))?;
        let waves = patches.matmul(&self.filters)?.square()?.reshape((n, side * side, DIRECTIONS, 2))?;
        waves.sum(&[3], false)?.mean(&[1], false)
    }
}

/// One result per picture. The batch is one evaluation, however many pictures there are.
fn process_images(images: &[Tensor], model: &Model) -> TensorResult<Vec<Tensor>> {
    // Stack images into a batch [N, H, W, C] of bytes.
    let batch = Tensor::stack(images, 0)?;
    // The conversion and the normalization are one pass.
    let normalized = batch.cast(model.scale.dtype())?.fused_affine(&model.scale, &model.bias)?;
    let features = model.forward(&normalized)?;
    features.eval()?;
    features.unstack(0)
}

/// What a run measured.
pub struct Report {
    /// Pictures whose direction was found, and all of them.
    pub right: (usize, usize),
    /// Median pictures per second one at a time, and in one batch.
    pub per_second: [f64; 2],
    /// The largest relative difference between the two ways' features.
    pub difference: f32,
}

/// Runs `count` pictures both ways, `rounds` times after a warm-up.
pub fn run(device: &Device, count: usize, rounds: usize) -> TensorResult<Report> {
    let model = Model::new(device)?;
    let images = (0..count).map(|n| Tensor::from_vec(picture(n), &[SIZE, SIZE, 3], device)).collect::<TensorResult<Vec<_>>>()?;
    let mut times = [Vec::new(), Vec::new()];
    let mut features: [Vec<Vec<f32>>; 2] = Default::default();
    for round in 0..rounds + 2 {
        for way in 0..2 {
            let start = Instant::now();
            let results = if way == 0 {
                images.iter().map(|i| Ok(process_images(std::slice::from_ref(i), &model)?.remove(0))).collect::<TensorResult<Vec<_>>>()?
            } else {
                process_images(&images, &model)?
            };
            // What is left of the work is waited for here.
            features[way] = results.iter().map(Tensor::to_vec).collect::<TensorResult<_>>()?;
            if round >= 2 {
                times[way].push(start.elapsed().as_secs_f64());
            }
        }
    }
    let largest = |v: &[f32]| (0..v.len()).max_by(|&a, &b| v[a].total_cmp(&v[b])).unwrap_or(0);
    let right = features[1].iter().enumerate().filter(|(n, v)| largest(v) == n % DIRECTIONS).count();
    let pairs = features[0].iter().flatten().zip(features[1].iter().flatten());
    let difference = pairs.map(|(a, b)| (a - b).abs() / a.abs().max(1e-3)).fold(0f32, f32::max);
    let per_second = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        count as f64 / t[t.len() / 2]
    });
    Ok(Report { right: (right, count), per_second, difference })
}

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    let (count, rounds) = (64, 20);
    println!("{count} pictures of {SIZE}×{SIZE} in {} on {}, median of {rounds} rounds", device.default_float(), device.name());
    let report = run(&device, count, rounds)?;
    println!("directions found        {} of {}", report.right.0, report.right.1);
    println!("one picture at a time   {:.0} pictures/s", report.per_second[0]);
    println!("one batch               {:.0} pictures/s, {:.2}×", report.per_second[1], report.per_second[1] / report.per_second[0]);
    println!("largest difference      {:.1e} of a feature", report.difference);
    Ok(())
}
