//! Judges barriers: of each, whether leaving out it alone would be found. As where a test leaves it out, the dispatches on both its sides run once
//! more in the other order, from the memory that they met; the barrier is needed where other bytes come out, or the run fails.

use crate::faults::FAULTS;
use crate::memory::FILL;
use crate::schedule::{Bind, Dispatch, Group, Use, bytes, run_together};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes to which the backend rounds what a step writes, before it compares that with what others write.
const GRANULE: usize = 16;
/// Bytes that memory has before both sides run again, small numbers and none: a run before may have left there what this one writes, and results may
/// depend on a number by rounding only, as a sum of powers on the maximum that it is scaled by.
const FILLS: [u8; 2] = [FILL, 0xFF];

/// Bytes of which it is tried one word after another whether a side reads them.
const MAX_TRIED: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq)]
enum Need {
    Needed,
    /// Both sides use parts of the same memory, none of which they share; but the ranges from the first to the last byte, rounded, overlap.
    Parts,
    Needless,
}

/// What is known of barriers between the same kernels that share memory in the same way.
struct Verdict {
    /// How often such a barrier was passed.
    passed: u64,
    need: Need,
    between: String,
}
static VERDICTS: Mutex<BTreeMap<u64, Verdict>> = Mutex::new(BTreeMap::new());
/// What is being done, which goes into the verdicts.
static WORK: Mutex<String> = Mutex::new(String::new());

/// What was found of the barriers that were judged.
#[derive(Debug)]
pub struct Judged {
    /// How many were passed, and how many of these are different.
    pub passed: u64,
    pub different: usize,
    /// Those between parts of the same memory that overlap only where ranges are compared: without them nothing would be found.
    pub parts: Vec<String>,
    /// The others without which nothing would be found.
    pub needless: Vec<String>,
}

/// Does work whose barriers are judged.
pub fn judged<T>(work: impl FnOnce() -> T) -> (T, Judged) {
    drop(take_judged());
    FAULTS.judge_barriers.store(true, SeqCst);
    let done = work();
    FAULTS.judge_barriers.store(false, SeqCst);
    (done, take_judged())
}

/// What was found so far; it begins anew.
pub fn take_judged() -> Judged {
    let all = std::mem::take(&mut *VERDICTS.lock().unwrap());
    let of = |need| all.values().filter(|v| v.need == need).map(|v| v.between.clone()).collect();
    let (parts, needless) = (of(Need::Parts), of(Need::Needless));
    Judged { passed: all.values().map(|v| v.passed).sum(), different: all.len(), parts, needless }
}

/// Has barriers judged from now on, and the process fail at its end if one is not needed: for programs whose tests are files of others. Called before
/// `main`, by the list of such functions that `judge_until_exit!` adds to.
pub extern "C" fn judge_until_exit() {
    extern "C" fn end() {
        let Judged { passed, different, parts, needless } = take_judged();
        let parts = parts.len();
        println!("{passed} barriers were passed, {different} different ones, {parts} of them between parts of one result");
        if !needless.is_empty() {
            println!("without these barriers nothing would be found:\n{}", needless.join("\n"));
            // SAFETY: ends the process.
            unsafe { libc::_exit(101) };
        }
    }
    FAULTS.judge_barriers.store(true, SeqCst);
    // SAFETY: a function that lives for ever.
    assert_eq!(unsafe { libc::atexit(end) }, 0);
}

/// Has [`judge_until_exit`] called before `main`.
#[macro_export]
macro_rules! judge_until_exit {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static JUDGE: extern "C" fn() = fake_metal::barriers::judge_until_exit;
    };
}

/// From now on work of this name is done.
pub fn during(name: &str) {
    *WORK.lock().unwrap() = name.into();
}

/// Memory, and what it had.
struct Saved(Vec<(Use, Vec<u8>)>);
impl Saved {
    /// What these dispatches write.
    fn of(group: &Group<'_>) -> Saved {
        Saved(written(group).map(|u| (u.clone(), bytes(u).to_vec())).collect())
    }
    fn restore(&self) {
        self.0.iter().for_each(|(u, had)| bytes(u).copy_from_slice(had));
    }
    fn is_there(&self) -> bool {
        self.0.iter().all(|(u, had)| bytes(u) == &had[..])
    }
}

fn uses<'g>(group: &'g Group<'_>) -> impl Iterator<Item = &'g Use> {
    group.iter().flat_map(|(_, uses)| uses).map(|(_, u)| u)
}
fn written<'g>(group: &'g Group<'_>) -> impl Iterator<Item = &'g Use> {
    uses(group).filter(|u| u.written)
}

/// Runs the dispatches of an encoder, and judges the barriers between these groups.
pub fn run_judged(groups: &[Group<'_>]) -> Result<(), String> {
    let barriers: Vec<Barrier<'_>> =
        groups.windows(2).map(|pair| Barrier { before: &pair[0], behind: &pair[1], met: [None, None] }).collect();
    let mut open: Vec<Option<Barrier<'_>>> = barriers.into_iter().map(|b| Some(b).filter(|b| b.is_open())).collect();
    for (n, group) in groups.iter().enumerate() {
        for (side, at) in [(0, Some(n)), (1, n.checked_sub(1))] {
            if let Some(Some(barrier)) = at.and_then(|at| open.get_mut(at)) {
                barrier.met[side] = Some(Rc::new(Saved::of(group)));
            }
        }
        run_together(group)?;
        if let Some(barrier) = n.checked_sub(1).and_then(|at| open[at].take()) {
            barrier.judge();
        }
    }
    Ok(())
}

/// A barrier, and what the dispatches before and behind it met.
struct Barrier<'g> {
    before: &'g Group<'g>,
    behind: &'g Group<'g>,
    met: [Option<Rc<Saved>>; 2],
}

impl Barrier<'_> {
    /// Counts it; whether it is not known to be needed. Kernels that are only learned use no memory, and are not judged.
    fn is_open(&self) -> bool {
        if [self.before, self.behind].iter().any(|g| g.iter().any(|(_, uses)| uses.is_empty())) {
            return false;
        }
        let mut all = VERDICTS.lock().unwrap();
        let verdict = all.entry(self.key()).or_insert_with(|| Verdict { passed: 0, need: Need::Needless, between: self.text() });
        verdict.passed += 1;
        verdict.need == Need::Needless
    }

    /// Notes whether it is needed; both sides have run.
    fn judge(&self) {
        if uses(self.before).any(|u| uses(self.behind).any(|v| u.meets(v))) {
            let right = [Saved::of(self.before), Saved::of(self.behind)];
            let need = self.need(&right);
            right.iter().for_each(Saved::restore);
            VERDICTS.lock().unwrap().get_mut(&self.key()).into_iter().for_each(|v| v.need = need);
        }
    }

    /// Whether it is needed; both sides have left these bytes.
    fn need(&self, right: &[Saved; 2]) -> Need {
        self.meet_again();
        if self.backwards().is_err() || !right.iter().all(Saved::is_there) {
            return Need::Needed;
        }
        if self.shows_with_others() || self.reading_zeros() {
            return Need::Needed;
        }
        let (Some(first), Some(second)) = (self.changes(self.before, self.behind), self.changes(self.behind, self.before)) else {
            return Need::Needless;
        };
        let (Some(of_first), Some(of_second)) = (self.reads(self.before, self.behind), self.reads(self.behind, self.before)) else {
            return Need::Needless;
        };
        let apart = first.is_disjoint(&second) && of_first.is_disjoint(&second) && of_second.is_disjoint(&first);
        if apart && ranges_overlap(&(&first | &of_first), &(&second | &of_second)) { Need::Parts } else { Need::Needless }
    }

    /// Whether the order shows where bytes that only one side writes were others before.
    fn shows_with_others(&self) -> bool {
        let (Some(first), Some(second)) = (self.changes(self.before, self.behind), self.changes(self.behind, self.before)) else {
            return false;
        };
        let of_one: Vec<usize> = first.symmetric_difference(&second).copied().collect();
        FILLS.iter().any(|fill| self.shows_with(*fill, &of_one))
    }

    /// The same with zeros in place of what both sides only read: where a row is chosen by its number, the first one.
    fn reading_zeros(&self) -> bool {
        let longest = uses(self.before).chain(uses(self.behind)).map(|u| u.end - u.start).max().unwrap_or(0);
        let zeros = vec![0u128; longest.div_ceil(16)];
        let start = zeros.as_ptr() as usize;
        let is_written = |u: &Use| written(self.before).chain(written(self.behind)).any(|v| v.meets(u));
        // The first has the numbers of a run.
        let read = |(index, u): &(usize, Use)| match *index > 0 && !u.written && !is_written(u) {
            true => (*index, Use { start, end: start + u.end - u.start, ..u.clone() }),
            false => (*index, u.clone()),
        };
        let [before, behind] =
            [self.before, self.behind].map(|g| g.iter().map(|(d, uses)| (*d, uses.iter().map(read).collect())).collect::<Group<'_>>());
        Barrier { before: &before, behind: &behind, met: self.met.clone() }.shows_with_others()
    }

    /// Whether the order shows where these bytes, which only one side writes, were others before.
    fn shows_with(&self, fill: u8, of_one: &[usize]) -> bool {
        let begin = || {
            self.meet_again();
            // SAFETY: bytes of buffers that the dispatches write.
            of_one.iter().for_each(|at| unsafe { (*at as *mut u8).write(fill) });
        };
        begin();
        if self.forwards().is_err() {
            return false;
        }
        let right = [Saved::of(self.before), Saved::of(self.behind)];
        begin();
        self.backwards().is_err() || !right.iter().all(Saved::is_there)
    }

    /// Where one side changes memory that the other uses; `None` where it fails if that had other bytes.
    fn changes(&self, group: &Group<'_>, other: &Group<'_>) -> Option<BTreeSet<usize>> {
        let shared: Vec<&Use> = written(group).filter(|u| uses(other).any(|v| v.meets(u))).collect();
        let mut all = BTreeSet::new();
        for fill in FILLS {
            self.meet_again();
            shared.iter().for_each(|u| bytes(u).fill(fill));
            group.iter().try_for_each(|(d, uses)| d.run(uses)).ok()?;
            let changed = |u: &Use| (u.start..u.end).zip(bytes(u)).filter(|(_, b)| **b != fill).map(|(at, _)| at);
            all.extend(shared.iter().flat_map(|u| changed(u)));
        }
        Some(all)
    }

    /// Gives memory what it had before both sides ran.
    fn meet_again(&self) {
        // What the first wrote and the second wrote again was there before both.
        self.met.iter().rev().flatten().for_each(|met| met.restore());
    }

    fn forwards(&self) -> Result<(), String> {
        self.before.iter().chain(self.behind).try_for_each(|(d, uses)| d.run(uses))
    }

    fn backwards(&self) -> Result<(), String> {
        self.before.iter().chain(self.behind).rev().try_for_each(|(d, uses)| d.run(uses))
    }

    /// Where one side reads memory that the other writes: the words whose bits change its results. `None` where that is too much to try each.
    fn reads(&self, group: &Group<'_>, other: &Group<'_>) -> Option<BTreeSet<usize>> {
        let run = |word: &[usize]| {
            self.meet_again();
            // SAFETY: bytes of buffers that the dispatches use.
            word.iter().map(|at| *at as *mut u8).for_each(|at| unsafe { at.write(!at.read()) });
            group.iter().try_for_each(|(d, uses)| d.run(uses))
        };
        run(&[]).ok()?;
        let right = Saved::of(group);
        let read = uses(group).filter(|u| !u.written);
        let shared = read.flat_map(|u| written(other).filter(|v| v.meets(u)).map(|v| u.start.max(v.start)..u.end.min(v.end)));
        let shared: BTreeSet<usize> = shared.flatten().collect();
        if shared.len() > MAX_TRIED {
            return None;
        }
        let shared: Vec<usize> = shared.into_iter().collect();
        Some(shared.chunks(4).filter(|word| run(word).is_err() || !right.is_there()).flatten().copied().collect())
    }

    /// The work, and the kernels on both sides with the threadgroups of each.
    fn text(&self) -> String {
        let kernels = |g: &Group<'_>| g.iter().map(|(d, _)| format!("{} {:?}", d.of.key, d.groups)).collect::<Vec<_>>().join(", ");
        format!("{}: {} | {}", WORK.lock().unwrap(), kernels(self.before), kernels(self.behind))
    }

    /// The same for barriers between the same kernels, run as large, whose buffers lie in memory in the same way.
    fn key(&self) -> u64 {
        let (mut hasher, mut objects) = (DefaultHasher::new(), vec![]);
        for group in [self.before, self.behind] {
            group.len().hash(&mut hasher);
            for (d, uses) in group {
                (&d.of.key, d.groups, d.threads).hash(&mut hasher);
                // The first has the numbers of a run, which lie elsewhere in each.
                uses.iter().filter(|(index, _)| *index > 0).for_each(|(index, u)| place(d, *index, u, &mut objects).hash(&mut hasher));
            }
        }
        hasher.finish()
    }
}

/// Whether what these have between their first and last bytes meets, in whole granules.
fn ranges_overlap(a: &BTreeSet<usize>, b: &BTreeSet<usize>) -> bool {
    let range = |bytes: &BTreeSet<usize>| Some((bytes.first()? / GRANULE, bytes.last()? / GRANULE));
    range(a).zip(range(b)).is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
}

/// Where the memory at an index lies: in which of the buffers, in the order in which they come, and which part of it.
fn place(d: &Dispatch, index: usize, u: &Use, objects: &mut Vec<usize>) -> Option<(usize, usize, usize)> {
    let Some(Some(Bind::Buffer { object, offset, .. })) = d.binds.get(index) else { return None };
    let number = objects.iter().position(|o| o == object).unwrap_or_else(|| {
        objects.push(*object);
        objects.len() - 1
    });
    Some((number, *offset, u.end - u.start))
}
