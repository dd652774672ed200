//! A convolutional network that reads digits. The data are synthetic, made here: seven-segment digits of 28×28 grey pixels, each shifted, slanted,
//! of its own thickness and brightness, under noise; the sizes are MNIST's, the pictures are not.
//!
//! `cargo run --release --example image_classifier`; `TL_DEVICE=cpu` (or `gpu`, `vulkan`, `metal`) chooses the device.

use tensorlogic::autograd::no_grad;
use tensorlogic::data::{DataLoader, Images, LoaderOptions, Order};
use tensorlogic::nn::{Act, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ModuleExt, Sequential};
use tensorlogic::ops::NllOptions;
use tensorlogic::optim::{AdamW, Optimizer, Schedule};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

const SIDE: usize = 28;
const CLASSES: usize = 10;
/// Pictures of one step.
const BATCH: usize = 32;

/// The segments of each digit, a bit each: top, upper left, upper right, middle, lower left, lower right, bottom.
const SEGMENTS: [u8; CLASSES] =
    [0b1110111, 0b0010010, 0b1011101, 0b1011011, 0b0111010, 0b1101011, 0b1101111, 0b1010010, 0b1111111, 0b1111011];
/// Each segment from corner to corner on a grid of 2 × 3 points, as (x, y).
const LINES: [[(f32, f32); 2]; 7] = [
    [(0.0, 0.0), (1.0, 0.0)],
    [(0.0, 0.0), (0.0, 1.0)],
    [(1.0, 0.0), (1.0, 1.0)],
    [(0.0, 1.0), (1.0, 1.0)],
    [(0.0, 1.0), (0.0, 2.0)],
    [(1.0, 1.0), (1.0, 2.0)],
    [(0.0, 2.0), (1.0, 2.0)],
];

/// `count` pictures `[1, 28, 28]` and their digits, which depend on `seed` alone.
fn digits(count: usize, seed: u64) -> TensorResult<Images> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let (mut images, mut labels) = (Vec::with_capacity(count * SIDE * SIDE), Vec::with_capacity(count));
    for n in 0..count {
        let digit = n % CLASSES;
        let (left, top) = (6.0 + 6.0 * random(), 3.0 + 4.0 * random());
        let (width, height) = (7.0 + 3.0 * random(), 7.0 + 2.0 * random());
        let (slant, thick, bright) = (0.3 * random() - 0.1, 0.7 + 0.9 * random(), 0.6 + 0.4 * random());
        for py in 0..SIDE {
            for px in 0..SIDE {
                // The pixel in the digit's own coordinates, and its distance in pixels from the nearest segment.
                let y = (py as f32 - top) / height;
                let x = (px as f32 - left - slant * (SIDE as f32 / 2.0 - py as f32)) / width;
                let distance = (0..7).filter(|&s| SEGMENTS[digit] >> (6 - s) & 1 == 1).map(|s| {
                    let [a, b] = LINES[s];
                    let (dx, dy) = (x - x.clamp(a.0.min(b.0), a.0.max(b.0)), y - y.clamp(a.1, b.1));
                    ((dx * width).powi(2) + (dy * height).powi(2)).sqrt()
                });
                let distance = distance.fold(f32::INFINITY, f32::min);
                let ink = bright * (1.0 + thick - distance).clamp(0.0, 1.0);
                images.push((ink + 0.5 * (random() - 0.5)).clamp(0.0, 1.0));
            }
        }
        labels.push(digit as i32);
    }
    Images::new(images, [1, SIDE, SIDE], labels)
}

fn network(rng: &mut Rng, device: &Device) -> TensorResult<Sequential> {
    Ok(Sequential::new()
        .push(Conv2d::new([1, 8], 3, 1, 1, true, rng, device)?)
        .push(Act(Tensor::relu))
        .push(MaxPool2d { kernel: 2, stride: 2 })
        .push(Conv2d::new([8, 16], 3, 1, 1, true, rng, device)?)
        .push(Act(Tensor::relu))
        .push(MaxPool2d { kernel: 2, stride: 2 })
        .push(Flatten)
        .push(Dropout::new(0.25, 7))
        .push(Linear::new(16 * 7 * 7, CLASSES, true, rng, device)?))
}

/// The share of pictures whose digit is found.
fn accuracy(model: &Sequential, data: &mut DataLoader) -> TensorResult<f64> {
    model.eval();
    let (mut right, mut all) = (0.0, 0);
    for _ in 0..data.batches_per_epoch() {
        let [images, labels] = &data.next_batch()?[..] else { break };
        let found = no_grad(|| model.forward(images)?.argmax(-1)?.eq(labels)?.cast(DType::F32)?.sum_all())?;
        right += found.item()?;
        all += labels.numel();
    }
    model.train();
    Ok(right / all as f64)
}

/// Trains on `count` pictures for `epochs` rounds; gives the share of 500 other pictures that is read right.
pub fn run(device: &Device, count: usize, epochs: usize, mut log: impl FnMut(usize, f64, f64)) -> TensorResult<f64> {
    let options = LoaderOptions { batch: BATCH, order: Order::Shuffled, seed: 1, ..Default::default() };
    let mut train = DataLoader::new(digits(count, 1)?, options, device)?;
    let mut test = DataLoader::new(digits(500, 2)?, LoaderOptions { order: Order::Sequential, drop_last: false, ..options }, device)?;
    let mut rng = Rng::new(42);
    let model = network(&mut rng, device)?;
    let steps = train.batches_per_epoch() * epochs as u64;
    let schedule = Schedule::warmup_cosine(3e-3, 3e-4, steps / 20, steps);
    let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 3e-3)?;

    let mut right = 0.0;
    for epoch in 1..=epochs {
        let mut last = f64::NAN;
        for step in 1..=train.batches_per_epoch() {
            let [images, labels] = &train.next_batch()?[..] else { break };
            optimizer.set_lr(schedule.at(optimizer.steps()));
            optimizer.zero_grad()?;
            let loss = model.forward(images)?.cross_entropy(labels, &NllOptions::default())?;
            loss.backward()?;
            optimizer.step()?;
            if step == train.batches_per_epoch() {
                last = loss.item()?;
            }
        }
        right = accuracy(&model, &mut test)?;
        log(epoch, last, right);
    }
    Ok(right)
}

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    println!("digits of {SIDE}×{SIDE} made by this program, on {}", device.name());
    run(&device, 6400, 5, |epoch, loss, right| println!("epoch {epoch}  loss {loss:.4}  test accuracy {:.1} %", 100.0 * right))?;
    Ok(())
}
