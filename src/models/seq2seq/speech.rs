//! Sound as Whisper reads it: samples of a WAV file, and their log-mel spectrogram.

use super::Seq2Seq;
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;
use std::f64::consts::PI;

/// Samples a second.
pub const SAMPLE_RATE: u32 = 16_000;
/// Samples that a frame looks at.
const WINDOW: usize = 400;
/// Samples from a frame to the next.
const HOP: usize = 160;
/// Frequencies of a frame: 0, 40, … 8,000 Hz.
const BINS: usize = WINDOW / 2 + 1;

/// The samples of a WAV file of 16,000 samples a second, between −1 and 1; several channels become their mean. Integers of 8, 16, 24 and 32 bits and floats
/// of 32 bits are read.
///
/// # Errors
/// [`TensorError::Format`] for another file or a damaged one, [`TensorError::Unsupported`] for another rate or kind of samples.
///
/// ```
/// use tensorlogic::models::seq2seq::speech::read_wav;
/// // One channel of 16,000 samples a second, 16 bits each.
/// let mut file = b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\x04\0\0\0".to_vec();
/// file.extend([16_384i16, -16_384].into_iter().flat_map(i16::to_le_bytes));
/// assert_eq!(read_wav(&file)?, [0.5, -0.5]);
/// assert!(read_wav(b"ID3").is_err());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn read_wav(bytes: &[u8]) -> TensorResult<Vec<f32>> {
    let bad = |what: &str| TensorError::format("wav", what.to_string());
    if bytes.len() < 12 || &bytes[..4] != b"RIFF" || &bytes[8..12] != b"WAVE" {
        return Err(bad("not a WAV file"));
    }
    let number = |at: usize, len: usize| bytes.get(at..at + len).map(|b| b.iter().rev().fold(0u32, |n, &b| n << 8 | u32::from(b)));
    let (mut at, mut format, mut data) = (12, None, None);
    while let Some(size) = number(at + 4, 4) {
        let body = at + 8..(at + 8).saturating_add(size as usize).min(bytes.len());
        match &bytes[at..at + 4] {
            b"fmt " => format = Some(body.clone()),
            b"data" => data = data.or(Some(body.clone())),
            _ => {}
        }
        // Chunks begin at even places.
        at = body.end + (size & 1) as usize;
    }
    let (format, data) = (format.ok_or_else(|| bad("no format"))?.start, data.ok_or_else(|| bad("no samples"))?);
    let field = |offset: usize, len: usize| number(format + offset, len).ok_or_else(|| bad("its format is cut"));
    let (mut kind, channels, rate, bits) = (field(0, 2)?, field(2, 2)? as usize, field(4, 4)?, field(14, 2)?);
    // The kind stands further behind in newer files.
    if kind == 0xFFFE {
        kind = field(24, 2)?;
    }
    if rate != SAMPLE_RATE {
        let hint = "convert it, for example with `ffmpeg -i FILE -ar 16000 -ac 1 OUT.wav`";
        return Err(TensorError::Unsupported(format!("{rate} samples a second; {SAMPLE_RATE} are read: {hint}")));
    }
    let size = bits as usize / 8;
    let sample: fn(&[u8]) -> f32 = match (kind, bits) {
        (1, 8) => |b| (f32::from(b[0]) - 128.0) / 128.0,
        (1, 16) => |b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32_768.0,
        (1, 24) => |b| i32::from_le_bytes([0, b[0], b[1], b[2]]) as f32 / 2_147_483_648.0,
        (1, 32) => |b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32 / 2_147_483_648.0,
        (3, 32) => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        _ => return Err(TensorError::Unsupported(format!("samples of kind {kind} with {bits} bits"))),
    };
    if channels == 0 {
        return Err(bad("no channels"));
    }
    let frames = bytes[data].chunks_exact(size * channels);
    Ok(frames.map(|f| f.chunks_exact(size).map(sample).sum::<f32>() / channels as f32).collect())
}

/// Slaney's scale: linear up to 1,000 Hz, logarithmic above.
fn mel(hertz: f64) -> f64 {
    if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4f64.ln() }
}

fn hertz(mel: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp() }
}

/// Triangles over frequencies `[BINS,mels]`, each of area 1 up to a common factor.
fn filters(mels: usize) -> Vec<f32> {
    let top = mel(f64::from(SAMPLE_RATE) / 2.0);
    let edges: Vec<f64> = (0..mels + 2).map(|i| hertz(top * i as f64 / (mels + 1) as f64)).collect();
    let weight = |bin: usize, m: usize| {
        let f = bin as f64 * f64::from(SAMPLE_RATE) / WINDOW as f64;
        let [low, middle, high] = [edges[m], edges[m + 1], edges[m + 2]];
        let height = ((f - low) / (middle - low)).min((high - f) / (high - middle)).max(0.0);
        (height * 2.0 / (high - low)) as f32
    };
    (0..BINS).flat_map(|bin| (0..mels).map(move |m| (bin, m))).map(|(bin, m)| weight(bin, m)).collect()
}

/// The log-mel spectrogram `[1,mels,frames]` of samples at 16,000 a second (Radford et al., 2022): the power of each mel band in windows of 25 ms, every
/// 10 ms, as log₁₀, at most 8 below the largest, (x + 4)/4. Samples behind `frames` · 160 are left out, and missing ones are silence.
///
/// # Errors
/// Those of the evaluation.
///
/// ```
/// use tensorlogic::Device;
/// use tensorlogic::models::seq2seq::speech::log_mel;
/// let tone: Vec<f32> = (0..16_000).map(|i| (i as f32 * 0.25).sin()).collect(); // 637 Hz
/// assert_eq!(log_mel(&tone, 80, 100, &Device::cpu())?.dims(), [1, 80, 100]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn log_mel(samples: &[f32], mels: usize, frames: usize, device: &Device) -> TensorResult<Tensor> {
    let whole = frames * HOP;
    let at = |i: usize| samples.get(i).copied().unwrap_or(0.0);
    // The signal is mirrored at both ends.
    let mirrored = |i: isize| match i {
        i if i < 0 => at(i.unsigned_abs()),
        i if i as usize >= whole => at((2 * whole - 2).saturating_sub(i as usize)),
        i => at(i as usize),
    };
    let hann: Vec<f64> = (0..WINDOW).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / WINDOW as f64).cos()).collect();
    let start = |frame: usize| (frame * HOP) as isize - (WINDOW / 2) as isize;
    let of_frame = |frame: usize| hann.iter().enumerate().map(move |(i, w)| (f64::from(mirrored(start(frame) + i as isize)) * w) as f32);
    let windows = Tensor::from_vec((0..frames).flat_map(of_frame).collect::<Vec<f32>>(), &[frames, WINDOW], device)?;
    let wave = |f: fn(f64) -> f64| -> TensorResult<Tensor> {
        let entry = |(i, k): (usize, usize)| f(2.0 * PI * (i * k % WINDOW) as f64 / WINDOW as f64) as f32;
        let table = (0..WINDOW).flat_map(|i| (0..BINS).map(move |k| (i, k))).map(entry).collect::<Vec<f32>>();
        windows.matmul(&Tensor::from_vec(table, &[WINDOW, BINS], device)?)
    };
    let power = wave(f64::cos)?.square()?.add(&wave(f64::sin)?.square()?)?;
    let bands = power.matmul(&Tensor::from_vec(filters(mels), &[BINS, mels], device)?)?.to_vec()?; // [frames, mels]
    let logs: Vec<f64> = bands.into_iter().map(|v| f64::from(v).max(1e-10).log10()).collect();
    let floor = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max) - 8.0;
    let value = |m: usize, t: usize| ((logs[t * mels + m].max(floor) + 4.0) / 4.0) as f32;
    let values = (0..mels).flat_map(|m| (0..frames).map(move |t| (m, t))).map(|(m, t)| value(m, t)).collect::<Vec<f32>>();
    Tensor::from_vec(values, &[1, mels, frames], device)
}

impl Seq2Seq {
    /// The samples that a model of sound hears at a time; 0 for a model that reads text.
    pub fn samples(&self) -> usize {
        self.spec.audio.map_or(0, |a| a.frames * HOP)
    }

    /// The spectrogram of samples at 16,000 a second as the model reads it, for [`Seq2Seq::listen`].
    ///
    /// # Errors
    /// [`TensorError::Unsupported`] for a model that reads text; those of [`log_mel`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Seq2Seq, Weights};
    /// let model = Seq2Seq::load(&Weights::open("tests/vectors/encoders/models2/whisper-base", &Device::cpu())?, None)?;
    /// let features = model.features(&vec![0.0; model.samples()])?;
    /// assert_eq!(features.dims(), [1, 20, 60]);
    /// assert!(features.to_vec()?.iter().all(|v| *v == -1.5)); // silence: (log₁₀ 10⁻¹⁰ + 4)/4
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn features(&self, samples: &[f32]) -> TensorResult<Tensor> {
        let Some(audio) = self.spec.audio else { return Err(TensorError::Unsupported("this model reads text, not sound".into())) };
        log_mel(samples, audio.mels, audio.frames, self.device())
    }
}
