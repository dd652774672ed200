//! Techniques for caches, each switched off and on: tiling, blocking, transposition, prefetching, the order of a gather.

mod data;
mod device;
mod host;
mod loops;

use super::{Change, Environment, Options, Outcome, Record, Stats, Verdict, Work, measure};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::eval::eval_stats;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// A technique on a kind of work, measured without and with it in turn.
#[derive(Clone, Debug)]
pub struct Technique {
    /// Tiling, blocking, transposition, prefetching, order, or library: the library's own kernel in the place of a plain one.
    pub name: &'static str,
    /// The work and its size: `product 512x512`.
    pub work: String,
    /// What is done without it.
    pub off: &'static str,
    /// What is done with it.
    pub on: &'static str,
    /// Both times, in seconds, and whether they differ beyond the noise.
    pub change: Change,
}

impl Technique {
    /// The time without it divided by the time with it: above 1 it gains, below it loses.
    pub fn ratio(&self) -> f64 {
        self.change.before / self.change.after
    }
    /// `gain`, `loss`, or `no difference` where the times differ by no more than the noise.
    pub fn verdict(&self) -> &'static str {
        match self.change.verdict {
            Verdict::Faster => "gain",
            Verdict::Slower => "loss",
            Verdict::Same => "no difference",
        }
    }
}

impl fmt::Display for Technique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (off, on) = (self.change.before * 1e3, self.change.after * 1e3);
        write!(f, "{:<14} {:<22} {off:>10.4} {on:>10.4} {:>7.2} ", self.name, self.work, self.ratio())?;
        write!(f, "{:>8.1} %  {:<14} {} -> {}", self.change.noise * 100.0, self.verdict(), self.off, self.on)
    }
}

/// One way to do some work.
struct Side {
    how: &'static str,
    /// Does it once.
    run: Box<dyn Fn() -> TensorResult<Outcome>>,
    /// All values of the result.
    values: Box<dyn Fn() -> TensorResult<Vec<f32>>>,
    /// The result by definition, where it is not that of the other side.
    expect: Option<Vec<f64>>,
}

impl Side {
    /// By a loop that fills `len` elements.
    fn host(how: &'static str, len: usize, work: impl Fn(&mut [f32]) + 'static) -> Side {
        let out = Rc::new(RefCell::new(vec![f32::NAN; len]));
        let last = out.clone();
        let run = Box::new(move || {
            let mut out = out.borrow_mut();
            work(&mut out);
            Ok(Outcome::Value(f64::from(std::hint::black_box(&*out)[0])))
        });
        Side { how, run, values: Box::new(move || Ok(last.borrow().clone())), expect: None }
    }
    /// By operations of the device.
    fn device(how: &'static str, work: impl Fn() -> TensorResult<Tensor> + 'static) -> Side {
        let work = Rc::new(work);
        let again = work.clone();
        Side { how, run: Box::new(move || Ok(Outcome::Tensor(work()?))), values: Box::new(move || again()?.to_vec()), expect: None }
    }
}

/// A technique with both ways to do the work, and what the result is.
struct TechniquePair {
    name: &'static str,
    data: data::Data,
    sides: [Side; 2],
}

/// Makes a pair when its turn comes, since it holds memory.
type Make = Box<dyn FnOnce(&Device) -> TensorResult<TechniquePair>>;

/// How far a result may be from the definition, as a part of `1 + |expected|`.
const TOLERANCE: f64 = 1e-3;

/// How often both sides are measured in turn.
const ROUNDS: usize = 3;

impl TechniquePair {
    /// The result of a side by definition.
    fn expected<'a>(&'a self, side: &'a Side) -> &'a [f64] {
        side.expect.as_ref().unwrap_or(&self.data.expect)
    }

    /// Compares all values of both sides with the definition.
    fn check(&self) -> TensorResult<()> {
        for side in &self.sides {
            (side.run)()?;
            let values = (side.values)()?;
            let wrong = |(got, want): (&f32, &f64)| !((f64::from(*got) - want).abs() <= TOLERANCE * (1.0 + want.abs()));
            let expect = self.expected(side);
            let at = if values.len() == expect.len() { values.iter().zip(expect).position(wrong) } else { Some(0) };
            if let Some(at) = at {
                let what = format!(
                    "{} of {} {}: element {at} of \"{}\" is wrong: nothing is reported",
                    self.name, self.data.work, self.data.size, side.how
                );
                return Err(TensorError::Internal(what));
            }
        }
        Ok(())
    }

    /// Checks both sides and measures them in turn.
    fn measure(&self, device: &Device, options: &Options, environment: &Environment) -> TensorResult<(Technique, Vec<Record>)> {
        self.check()?;
        let rounds = if options.quick { 1 } else { ROUNDS };
        let mut times: [Vec<Stats>; 2] = Default::default();
        let mut records = Vec::new();
        for _ in 0..rounds {
            for (n, side) in self.sides.iter().enumerate() {
                let work =
                    Work { variants: 1, run: Box::new(|_| (side.run)()), expect: vec![self.expected(side)[0]], tolerance: TOLERANCE };
                let t = measure(device, &work, options)?;
                times[n].push(t.best().clone());
                let dispatches = if t.gpu.is_some() { eval_stats(device).dispatches } else { 0 };
                records.push(Record {
                    suite: "caches".into(),
                    category: self.name.into(),
                    operation: format!("{}: {}", self.data.work, side.how),
                    size: self.data.size.clone(),
                    environment: environment.clone(),
                    bytes: self.data.bytes,
                    operations: self.data.operations,
                    dispatches,
                    batch: t.batch,
                    wall: t.wall,
                    gpu: t.gpu,
                    limit: None,
                });
            }
        }
        let work = format!("{} {}", self.data.work, self.data.size);
        let change = Change::between(&format!("{} of {work}", self.name), &times[0], &times[1]);
        Ok((Technique { name: self.name, work, off: self.sides[0].how, on: self.sides[1].how, change }, records))
    }
}

/// Measures the techniques on a device; `done` sees each at once. On a CPU they are loops of one thread in plain Rust, on a GPU
/// kernels in WGSL; the rows named `library` compare them with the library's operation, which uses all threads.
///
/// Every value of both results is compared with the definition in f64 first, and the first one after each sample.
///
/// ```
/// use tensorlogic::measure::{Options, caches};
/// use tensorlogic::prelude::*;
///
/// let (techniques, _) = caches(&Device::cpu(), &Options::quick(), &mut |t| println!("{t}"))?;
/// assert!(techniques.iter().any(|t| t.name == "tiling" && t.work.starts_with("product") && t.ratio() > 0.0));
/// # Ok::<(), TensorError>(())
/// ```
///
/// # Errors
/// Those of the device, and when a result is wrong.
pub fn caches(device: &Device, options: &Options, done: &mut dyn FnMut(&Technique)) -> TensorResult<(Vec<Technique>, Vec<Record>)> {
    let environment = Environment::of(device);
    let pairs = if device.capabilities().shaders { device::pairs } else { host::pairs };
    let mut out = (Vec::new(), Vec::new());
    for pair in pairs(options.quick) {
        let (technique, records) = pair(device)?.measure(device, options, &environment)?;
        done(&technique);
        out.0.push(technique);
        out.1.extend(records);
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
