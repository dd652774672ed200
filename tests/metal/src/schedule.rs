//! Runs what command buffers hold, and finds what a real GPU leaves undefined: encoders that use the same memory without a fence between, and dispatches
//! of a concurrent encoder whose results depend on their order because a barrier is missing.

use crate::barriers::run_judged;
use crate::kernel::{self, Orders};
use crate::metal::{COUNTS, FAULTS};
use crate::source::Parameter;
use crate::{compiler, objc};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, LazyLock, Mutex};

/// What is bound at an index.
#[derive(Clone)]
pub enum Bind {
    /// An object and the heap that it is of, its memory, its length and where the binding begins.
    Buffer { object: usize, heap: Option<usize>, ptr: usize, len: usize, offset: usize },
    /// A copy of the caller's bytes.
    Bytes(Vec<u128>),
}

/// A dispatch as it was encoded.
pub struct Dispatch {
    pub of: compiler::Compiled,
    pub groups: [u32; 3],
    pub threads: [u32; 3],
    pub binds: Vec<Option<Bind>>,
}

/// A command of a compute encoder.
pub enum Act {
    Barrier,
    Dispatch(Dispatch),
}

/// A copy of a blit encoder.
pub struct Copy {
    pub from: Bind,
    pub to: Bind,
    pub len: usize,
}

/// The commands of an encoder, with the fences that it waits for and updates.
#[derive(Default)]
pub struct Pass {
    pub label: String,
    pub concurrent: bool,
    pub acts: Vec<Act>,
    pub copies: Vec<Copy>,
    pub waits: Vec<usize>,
    pub updates: Vec<usize>,
}

/// Memory that something uses.
#[derive(Clone)]
pub struct Use {
    pub by: String,
    pub pass: u64,
    pub written: bool,
    pub start: usize,
    pub end: usize,
}

impl Use {
    pub fn meets(&self, other: &Use) -> bool {
        (self.written || other.written) && self.start < other.end && other.start < self.end
    }
}

/// What a queue has run: uses that no encoder waited for yet, and which encoder updated a fence last.
#[derive(Default)]
pub struct History {
    open: Vec<Use>,
    updated: HashMap<usize, u64>,
    passes: u64,
}

/// The memory of a binding, or why it cannot be used.
fn memory(bind: &Bind, what: &str) -> Result<(usize, usize), String> {
    match bind {
        Bind::Bytes(b) => Ok((b.as_ptr() as usize, b.as_ptr() as usize + 16 * b.len())),
        Bind::Buffer { object, .. } if objc::is_freed(*object as objc::Id) => {
            Err(format!("{what} was freed before its commands were done"))
        }
        Bind::Buffer { ptr, len, offset, .. } if offset > len => Err(format!("{what} begins at {}, behind its end", ptr + offset)),
        Bind::Buffer { ptr, len, offset, .. } => Ok((ptr + offset, ptr + len)),
    }
}

impl Dispatch {
    /// The memory of each of the kernel's buffers.
    fn uses(&self, pass: u64) -> Result<Vec<(usize, Use)>, String> {
        let own = &self.of.name;
        if self.of.max_threads.is_some_and(|m| self.threads.iter().product::<u32>() > m) {
            return Err(format!("{own}: {:?} threads are more than the kernel allows", self.threads));
        }
        let mut all = vec![];
        for parameter in self.of.kernel()?.iter().flat_map(|k| &k.parameters) {
            let Parameter::Buffer { index, written, name } = parameter else { continue };
            let bind = self.binds.get(*index).and_then(|b| b.as_ref());
            let bind = bind.ok_or_else(|| format!("{own}: nothing is bound at {index} ({name})"))?;
            let (start, end) = memory(bind, &format!("{own}: the buffer at {index} ({name})"))?;
            all.push((*index, Use { by: own.clone(), pass, written: *written, start, end }));
        }
        Ok(all)
    }

    /// Whether this kernel is to run in three orders of threads: the first time, where that is asked for.
    fn is_due(&self, kernel: &Arc<kernel::Kernel>) -> bool {
        static ORDERED: LazyLock<Mutex<HashSet<usize>>> = LazyLock::new(Mutex::default);
        let due = FAULTS.three_orders.load(SeqCst) && ORDERED.lock().unwrap().insert(Arc::as_ptr(kernel) as usize);
        COUNTS.ordered_kernels.fetch_add(u64::from(due), SeqCst);
        due
    }

    pub fn run(&self, uses: &[(usize, Use)]) -> Result<(), String> {
        let Some(kernel) = self.of.kernel()? else { return Ok(()) };
        let unbound = kernel::Memory { at: 16 as *mut u8, bytes: 0, written: false, ordered: false, restored: false };
        let mut table = vec![unbound; uses.iter().map(|u| u.0 + 1).max().unwrap_or(0)];
        let orders = if kernel.meets && self.is_due(&kernel) { Orders::Three } else { Orders::One };
        // What exchanges values with a comparison adds in any order; scratch and the record of a wrong index are not results.
        let swaps = self.of.contains("atomic_compare_exchange");
        const OTHERS: [&str; 4] = ["scratch", "scratch4_", "e", "e_"];
        let results = |index| {
            let is_other =
                |p: &Parameter| matches!(p, Parameter::Buffer { index: n, name, .. } if *n == index && OTHERS.contains(&name.as_str()));
            !swaps && !kernel.parameters.iter().any(is_other)
        };
        for (index, u) in uses {
            let (ordered, restored) = (u.written && results(*index), u.written);
            table[*index] = kernel::Memory { at: u.start as *mut u8, bytes: u.end - u.start, written: u.written, ordered, restored };
        }
        // SAFETY: every buffer that the kernel declares is bound and alive, and only the thread of its queue uses it now.
        let done = unsafe { kernel.run(&compiler::toolchain()?.runtime, self.groups, self.threads, &table, orders) };
        done.map_err(|e| format!("{}: {e}", self.of.name))
    }
}

/// Dispatches that no barrier parts, and the memory that each has at its indices.
pub type Group<'p> = Vec<(&'p Dispatch, Vec<(usize, Use)>)>;

/// Bytes of memory that a dispatch writes.
pub fn bytes(u: &Use) -> &'static mut [u8] {
    // SAFETY: the buffers of a dispatch are alive while it runs, and only the thread of its queue uses them.
    unsafe { std::slice::from_raw_parts_mut(u.start as *mut u8, u.end - u.start) }
}

/// Runs dispatches that no barrier parts.
pub fn run_together(all: &Group<'_>) -> Result<(), String> {
    let meeting = all.iter().enumerate().find_map(|(n, (a, own))| {
        let meets = |other: &Vec<(usize, Use)>| own.iter().any(|(_, u)| other.iter().any(|(_, v)| u.meets(v)));
        all[..n].iter().find(|(_, other)| meets(other)).map(|(b, _)| (a.of.name.clone(), b.of.name.clone()))
    });
    let Some((later, earlier)) = meeting else { return all.iter().try_for_each(|(d, uses)| d.run(uses)) };
    // Bindings reach to their buffers' ends; whether the dispatches touch the same bytes shows in another order.
    let written: Vec<&Use> = all.iter().flat_map(|(_, uses)| uses).map(|(_, u)| u).filter(|u| u.written).collect();
    let before: Vec<Vec<u8>> = written.iter().map(|u| bytes(u).to_vec()).collect();
    all.iter().try_for_each(|(d, uses)| d.run(uses))?;
    let after: Vec<Vec<u8>> = written.iter().map(|u| bytes(u).to_vec()).collect();
    written.iter().zip(&before).for_each(|(u, b)| bytes(u).copy_from_slice(b));
    all.iter().rev().try_for_each(|(d, uses)| d.run(uses))?;
    match written.iter().zip(&after).all(|(u, a)| bytes(u) == &a[..]) {
        true => Ok(()),
        false => Err(format!("{later} and {earlier} use the same memory, with no barrier between")),
    }
}

impl History {
    /// Runs the commands of an encoder.
    pub fn run(&mut self, pass: &Pass) -> Result<(), String> {
        self.passes += 1;
        let number = self.passes;
        for fence in &pass.waits {
            let by = self.updated.get(fence).copied();
            self.open.retain(|u| Some(u.pass) != by);
        }
        let result = self.run_acts(pass, number);
        self.updated.extend(pass.updates.iter().map(|f| (*f, number)));
        result
    }

    fn run_acts<'p>(&mut self, pass: &'p Pass, number: u64) -> Result<(), String> {
        for c in &pass.copies {
            let uses = [(&c.from, false), (&c.to, true)].map(|(bind, written)| {
                let (start, end) = memory(bind, "the buffer of a copy")?;
                let end = if start + c.len <= end { start + c.len } else { return Err("a copy beyond the end of a buffer".to_string()) };
                Ok(Use { by: "a copy".into(), pass: number, written, start, end })
            });
            let [from, to] = uses;
            let (from, to) = (from?, to?);
            self.note(&[from.clone(), to.clone()])?;
            bytes(&to).copy_from_slice(bytes(&from));
        }
        let (mut together, mut groups) = (Group::new(), FAULTS.judge_barriers.load(SeqCst).then(Vec::new));
        let mut run = |group: Group<'p>| match &mut groups {
            Some(groups) => {
                groups.push(group);
                Ok(())
            }
            None => run_together(&group),
        };
        for act in &pass.acts {
            match act {
                Act::Barrier => run(std::mem::take(&mut together))?,
                Act::Dispatch(d) => {
                    let uses = d.uses(number)?;
                    self.note(&uses.iter().map(|u| u.1.clone()).collect::<Vec<_>>())?;
                    together.push((d, uses));
                    if !pass.concurrent {
                        run_together(&std::mem::take(&mut together))?;
                    }
                }
            }
        }
        run(together)?;
        groups.map_or(Ok(()), |groups| run_judged(&groups))
    }

    /// Notes uses, none of which may meet one of an encoder that was not waited for.
    fn note(&mut self, uses: &[Use]) -> Result<(), String> {
        for u in uses {
            if let Some(other) = self.open.iter().find(|o| o.pass != u.pass && o.meets(u)) {
                return Err(format!("{} uses memory of {} of an encoder before, with no fence between", u.by, other.by));
            }
        }
        self.open.extend(uses.iter().cloned());
        Ok(())
    }
}
