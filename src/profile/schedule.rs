//! Profiles of some steps of a loop: wait, warm up, record, and again.

use super::{Profile, ProfileOptions, Profiler};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::events;
use std::path::PathBuf;

/// Which steps of a loop are recorded: each cycle leaves out `wait` steps, measures `warmup` steps in vain, and records `active` steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Steps that run unmeasured.
    pub wait: usize,
    /// Steps that are measured and forgotten: measuring warms up, too.
    pub warmup: usize,
    /// Steps that are recorded.
    pub active: usize,
    /// Cycles; 0 for as many as there are.
    pub repeat: usize,
}

/// What happens to a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Nothing,
    WarmUp,
    Record,
}

impl Schedule {
    fn cycle(&self) -> usize {
        self.wait + self.warmup + self.active
    }

    fn action(&self, step: usize) -> Action {
        if self.active == 0 || (self.repeat > 0 && step >= self.repeat * self.cycle()) {
            return Action::Nothing;
        }
        match step % self.cycle() {
            n if n < self.wait => Action::Nothing,
            n if n < self.wait + self.warmup => Action::WarmUp,
            _ => Action::Record,
        }
    }
}

/// What gets each cycle's number and profile.
type Handler<'h> = Box<dyn FnMut(usize, &Profile) -> TensorResult<()> + 'h>;

/// Profiles steps of a loop by a schedule. See [`Device::profile_steps`].
pub struct StepProfiler<'h> {
    device: Device,
    schedule: Schedule,
    options: ProfileOptions,
    handler: Handler<'h>,
    step: usize,
    cycles: usize,
    running: Option<Profiler>,
    last: Option<Profile>,
}

impl Device {
    /// Profiles some steps of a loop; `handler` gets the number and the profile of each cycle. Call [`StepProfiler::step`] at the end of
    /// every step.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::{Device, DType, Rng};
    /// # use tensorlogic::profile::{ProfileOptions, Schedule, SortBy};
    /// # fn main() -> tensorlogic::TensorResult<()> {
    /// let device = Device::cpu();
    /// let x = Rng::new(1).normal(&[64, 64], DType::F32, &device)?;
    /// let mut cycles = 0;
    /// let schedule = Schedule { wait: 1, warmup: 1, active: 3, repeat: 2 };
    /// let mut profiler = device.profile_steps(schedule, ProfileOptions::all(), |_, profile| {
    ///     cycles += 1;
    ///     assert_eq!(profile.runs(), 3);
    ///     Ok(())
    /// })?;
    /// for _ in 0..10 {
    ///     x.matmul(&x)?.relu()?.eval()?;
    ///     profiler.step()?;
    /// }
    /// let last = profiler.finish()?.expect("two cycles were recorded");
    /// println!("{}", last.table(SortBy::Time, 10));
    /// assert_eq!(cycles, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TensorError::Config`] for a schedule that records no steps; if this device is already being measured.
    pub fn profile_steps<'h>(
        &self,
        schedule: Schedule,
        options: ProfileOptions,
        handler: impl FnMut(usize, &Profile) -> TensorResult<()> + 'h,
    ) -> TensorResult<StepProfiler<'h>> {
        if schedule.active == 0 {
            return Err(TensorError::Config("a schedule with no active steps records nothing".into()));
        }
        let handler = Box::new(handler);
        let mut p = StepProfiler { device: self.clone(), schedule, options, handler, step: 0, cycles: 0, running: None, last: None };
        p.begin()?;
        Ok(p)
    }
}

impl StepProfiler<'_> {
    /// Starts what the next step needs.
    fn begin(&mut self) -> TensorResult<()> {
        let action = self.schedule.action(self.step);
        let before = self.step.checked_sub(1).map_or(Action::Nothing, |step| self.schedule.action(step));
        if action != Action::Nothing && (action != before || self.running.is_none()) {
            // What the warm-up measured is forgotten.
            self.running = None;
            self.running = Some(self.device.profiler_with(self.options)?);
        }
        Ok(())
    }

    /// Ends the recording of a cycle.
    fn end(&mut self) -> TensorResult<()> {
        if let Some(profiler) = self.running.take() {
            let profile = profiler.finish()?;
            events::profile_cycle(self.cycles, profile.runs());
            (self.handler)(self.cycles, &profile)?;
            self.cycles += 1;
            self.last = Some(profile);
        }
        Ok(())
    }

    /// Ends a step.
    ///
    /// # Errors
    /// Those of the device and of the handler; if the device is being measured by somebody else.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::profile::{ProfileOptions, Schedule};
    ///
    /// let device = Device::cpu();
    /// let x = Tensor::ones(&[8], DType::F32, &device)?;
    /// let schedule = Schedule { wait: 1, warmup: 0, active: 2, repeat: 1 };
    /// let mut profiler = device.profile_steps(schedule, ProfileOptions::default(), |_, _| Ok(()))?;
    /// for _ in 0..4 {
    ///     x.exp()?.eval()?;
    ///     profiler.step()?;
    /// }
    /// assert_eq!(profiler.finish()?.map(|profile| profile.runs()), Some(2)); // the second step and the third
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn step(&mut self) -> TensorResult<()> {
        let recorded = self.schedule.action(self.step) == Action::Record;
        self.step += 1;
        let ends = self.step % self.schedule.cycle() == 0 || self.schedule.action(self.step) != Action::Record;
        if recorded && ends {
            self.end()?;
        }
        self.begin()
    }

    /// Ends the profile: a cycle whose recording has begun goes to the handler as it is. Gives the last cycle's profile.
    ///
    /// # Errors
    /// Those of the device and of the handler.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::profile::{ProfileOptions, Schedule};
    ///
    /// let device = Device::cpu();
    /// let schedule = Schedule { wait: 0, warmup: 0, active: 5, repeat: 0 };
    /// let mut profiler = device.profile_steps(schedule, ProfileOptions::default(), |_, _| Ok(()))?;
    /// Tensor::ones(&[8], DType::F32, &device)?.exp()?.eval()?;
    /// profiler.step()?;
    /// let profile = profiler.finish()?.expect("a cycle has begun"); // one step of its five
    /// assert_eq!(profile.runs(), 1);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn finish(mut self) -> TensorResult<Option<Profile>> {
        // A recording that holds no step yet says nothing.
        let into = self.step % self.schedule.cycle();
        if self.schedule.action(self.step) == Action::Record && into > self.schedule.wait + self.schedule.warmup {
            self.end()?;
        }
        Ok(self.last.take())
    }
}

/// A handler that writes each cycle into a folder: `trace-N.json` for ui.perfetto.dev and `table-N.txt`. The folder is made if it is missing.
///
/// # Errors
/// If the folder cannot be made.
///
/// ```standalone_crate
/// # use tensorlogic::prelude::*;
/// use tensorlogic::profile::{ProfileOptions, Schedule, trace_files};
///
/// let folder = std::env::temp_dir().join(format!("tl-doc-trace-files-{}", std::process::id()));
/// let device = Device::cpu();
/// let schedule = Schedule { wait: 0, warmup: 0, active: 1, repeat: 1 };
/// let mut profiler = device.profile_steps(schedule, ProfileOptions::default(), trace_files(&folder)?)?;
/// Tensor::ones(&[8], DType::F32, &device)?.exp()?.eval()?;
/// profiler.step()?;
/// assert!(folder.join("trace-0.json").is_file() && folder.join("table-0.txt").is_file());
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn trace_files(folder: impl Into<PathBuf>) -> TensorResult<impl FnMut(usize, &Profile) -> TensorResult<()>> {
    let folder = folder.into();
    std::fs::create_dir_all(&folder).map_err(|e| TensorError::io(&folder, e))?;
    Ok(move |cycle: usize, profile: &Profile| {
        for (name, text) in [("trace", profile.chrome_trace()), ("table", profile.to_string())] {
            let path = folder.join(format!("{name}-{cycle}.{}", if name == "trace" { "json" } else { "txt" }));
            std::fs::write(&path, text).map_err(|e| TensorError::io(&path, e))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_wait_warm_up_and_are_recorded() {
        let check = |wait, warmup, active, repeat, expect: &str| {
            let s = Schedule { wait, warmup, active, repeat };
            let letter = |a| match a {
                Action::Nothing => '.',
                Action::WarmUp => 'w',
                Action::Record => 'R',
            };
            assert_eq!((0..expect.len()).map(|n| letter(s.action(n))).collect::<String>(), expect, "{s:?}");
        };
        check(1, 1, 3, 2, ".wRRR.wRRR....");
        check(0, 0, 1, 0, "RRRR");
        check(2, 0, 1, 1, "..R....");
        check(1, 1, 0, 0, "....");
    }
}
