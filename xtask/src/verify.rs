//! Compares a model with reference outputs that `tests/reference/make_reference.py` made: logits over a text, greedy continuations.

use std::fmt;
use std::path::Path;
use tensorlogic::io::SafeTensors;
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::{DType, Device, TensorError, TensorResult};

/// ‖Δ‖₂/‖reference‖₂ that no position may exceed.
pub const LOGITS: f64 = 1e-3;
/// Where the reference's two best logits are nearer than this, another token may win.
pub const MARGIN: f32 = 0.02;

/// How much to compare, and where.
pub struct VerifyOptions {
    pub device: String,
    pub dtype: DType,
    /// Tokens of the text.
    pub tokens: usize,
    /// Prompts, and tokens after each of them.
    pub prompts: usize,
    pub greedy: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions { device: "auto".into(), dtype: DType::F32, tokens: usize::MAX, prompts: usize::MAX, greedy: usize::MAX }
    }
}

/// A place where the greedy token is not the reference's.
pub struct Difference {
    pub prompt: usize,
    pub step: usize,
    pub want: u32,
    pub got: u32,
    /// The reference's best logit minus its second best.
    pub margin: f32,
}

/// What came out.
pub struct Report {
    pub device: String,
    pub positions: usize,
    /// ‖Δ‖₂/‖reference‖₂ over the stored logits of a position: the worst, where, and the mean.
    pub worst: f64,
    pub worst_at: usize,
    pub mean: f64,
    /// The largest |Δ| of log-sum-exp.
    pub logsumexp: f64,
    /// Mean KL(reference ‖ ours) of the 64 best tokens and all others taken together: a lower bound of the full divergence.
    pub kl: f64,
    pub same_best: usize,
    pub greedy: usize,
    pub differences: Vec<Difference>,
}

impl Report {
    pub fn passes(&self) -> bool {
        self.worst <= LOGITS && self.differences.iter().all(|d| d.margin < MARGIN)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device                       {}", self.device)?;
        writeln!(f, "positions                    {}", self.positions)?;
        writeln!(f, "worst ‖Δ‖/‖reference‖        {:.2e} at position {}", self.worst, self.worst_at)?;
        writeln!(f, "mean ‖Δ‖/‖reference‖         {:.2e}", self.mean)?;
        writeln!(f, "worst |Δ| of log-sum-exp     {:.2e}", self.logsumexp)?;
        writeln!(f, "mean KL, at least            {:.2e}", self.kl)?;
        writeln!(f, "same best token              {} of {}", self.same_best, self.positions)?;
        writeln!(f, "greedy tokens compared       {}", self.greedy)?;
        writeln!(f, "greedy tokens that differ    {}", self.differences.len())?;
        for d in &self.differences {
            writeln!(f, "  prompt {} step {}: {} instead of {}, margin {}", d.prompt, d.step, d.got, d.want, d.margin)?;
        }
        write!(f, "{}", if self.passes() { "equal" } else { "NOT EQUAL" })
    }
}

struct Reference(SafeTensors);

impl Reference {
    fn words(&self, name: &str) -> TensorResult<Vec<[u8; 4]>> {
        let info = self.0.tensor(name)?;
        if !matches!(info.type_name(), "F32" | "I32") {
            return Err(TensorError::format("reference", format!("`{name}` is {}", info.type_name())));
        }
        Ok(self.0.bytes_of(info).as_chunks::<4>().0.to_vec())
    }
    fn floats(&self, name: &str) -> TensorResult<Vec<f32>> {
        Ok(self.words(name)?.into_iter().map(f32::from_le_bytes).collect())
    }
    fn ids(&self, name: &str) -> TensorResult<Vec<u32>> {
        Ok(self.words(name)?.into_iter().map(u32::from_le_bytes).collect())
    }
}

/// Compares the model with the reference.
pub fn verify(model: &Path, reference: &Path, o: &VerifyOptions) -> TensorResult<Report> {
    let reference = Reference(SafeTensors::open(reference)?);
    let device = Device::open(&o.device)?;
    let model = models::load(&Weights::open(model, &device)?, Some(o.dtype))?;
    let mut report = Report {
        device: format!("{}, {}", device.name(), o.dtype),
        positions: 0,
        worst: 0.0,
        worst_at: 0,
        mean: 0.0,
        logsumexp: 0.0,
        kl: 0.0,
        same_best: 0,
        greedy: 0,
        differences: Vec::new(),
    };
    text(&*model, &device, &reference, o, &mut report)?;
    for prompt in 0..10.min(o.prompts) {
        greedy(&*model, &device, &reference, prompt, o, &mut report)?;
    }
    Ok(report)
}

/// Logits after every token of the text, each of which is given, whatever the model would have said.
fn text(model: &dyn Model, device: &Device, reference: &Reference, o: &VerifyOptions, report: &mut Report) -> TensorResult<()> {
    let ids = reference.ids("text_ids")?;
    let ids = &ids[..o.tokens.min(ids.len())];
    let (top_ids, top) = (reference.ids("top_ids")?, reference.floats("top_logits")?);
    let (fixed_ids, fixed) = (reference.ids("fixed_ids")?, reference.floats("fixed_logits")?);
    let logsumexp = reference.floats("logsumexp")?;
    let best = top_ids.len() / logsumexp.len().max(1);
    let vocab = model.shape().vocab;
    // As many logits at a time as fit a buffer of 64 MiB, the least that adapters offer being 128 MiB.
    let chunk = ((64 << 20) / (4 * vocab)).clamp(1, 128);
    let mut session = Session::new(model, ids.len().next_multiple_of(8).min(model.shape().context), device)?;
    let mut at = 0;
    for part in ids.chunks(chunk) {
        let logits = session.score(part)?.to_vec()?;
        for row in logits.chunks(vocab) {
            let (mut delta, mut norm) = (0f64, 0f64);
            let tops = top_ids[at * best..][..best].iter().zip(&top[at * best..][..best]);
            let fixeds = fixed_ids.iter().zip(&fixed[at * fixed_ids.len()..][..fixed_ids.len()]);
            for (&id, &want) in tops.clone().chain(fixeds) {
                // A NaN makes the sum NaN, which is not below any limit.
                delta += (row[id as usize] as f64 - want as f64).powi(2);
                norm += (want as f64).powi(2);
            }
            let off = (delta / norm).sqrt();
            if off.is_nan() || off > report.worst {
                (report.worst, report.worst_at) = (if off.is_nan() { f64::INFINITY } else { off }, at);
            }
            report.mean += off / ids.len() as f64;
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
            let ours = largest + row.iter().map(|&v| (v as f64 - largest).exp()).sum::<f64>().ln();
            let theirs = logsumexp[at] as f64;
            report.logsumexp = report.logsumexp.max((ours - theirs).abs());
            let (mut p_rest, mut q_rest, mut kl) = (1f64, 1f64, 0f64);
            for (&id, &want) in tops {
                let (p, q) = (want as f64 - theirs, row[id as usize] as f64 - ours);
                kl += p.exp() * (p - q);
                p_rest -= p.exp();
                q_rest -= q.exp();
            }
            if p_rest > 1e-6 && q_rest > 0.0 {
                kl += p_rest * (p_rest / q_rest).ln();
            }
            report.kl += kl / ids.len() as f64;
            report.same_best += (row[top_ids[at * best] as usize] as f64 >= largest) as usize;
            at += 1;
        }
    }
    report.positions = at;
    Ok(())
}

/// Greedy tokens after a prompt, as `tl generate` makes them. After a difference the reference's token is put in its place.
fn greedy(model: &dyn Model, device: &Device, reference: &Reference, n: usize, o: &VerifyOptions, report: &mut Report) -> TensorResult<()> {
    let prompt = reference.ids(&format!("prompt_{n}"))?;
    let (want, margins) = (reference.ids(&format!("greedy_{n}"))?, reference.floats(&format!("margin_{n}"))?);
    let want = &want[..o.greedy.min(want.len())];
    let mut session = Session::new(model, (prompt.len() + want.len()).next_multiple_of(8), device)?;
    let mut logits = session.prompt(&prompt, || false)?;
    let mut step = 0;
    while let Some(given) = logits.take().filter(|_| step < want.len()) {
        let mut sampler = Sampler::default();
        let mut generation = session.generate(given, &mut sampler)?;
        let mut other = None;
        while let (None, Some(&right)) = (other, want.get(step)) {
            let got = generation.token()?.ok_or_else(|| TensorError::Value("the context ended early".into()))?;
            if got != right {
                report.differences.push(Difference { prompt: n, step, want: right, got, margin: margins[step] });
                other = Some(right);
            }
            step += 1;
            report.greedy += 1;
        }
        generation.finish();
        if let Some(right) = other {
            session.truncate(prompt.len() + step - 1);
            logits = session.prompt(&[right], || false)?;
        }
    }
    Ok(())
}
