//! Several processes, called ranks, that compute one training run: who they are, how they agree, and sums that do not depend on their number.
//!
//! A rank is a process with one device. Ranks are started by a launcher that clusters already have (`mpirun`, `srun`, Kubernetes' MPIJob), and talk
//! through a [`Transport`]: MPI, looked up at run time ([`join`]), or nothing where the process runs alone ([`Ranks::alone`]). A run is
//! defined by its *lanes* ([`crate::train::LaneStep`]), not by its ranks: sums follow a fixed tree over lane numbers ([`sums`]).

mod devices;
mod launcher;
#[cfg(unix)]
mod mpi;
pub mod sums;
mod window;

pub use devices::{Candidate, check_devices, gpu_of_rank};
pub use launcher::{Family, Launch};
pub(crate) use window::SLOT;
pub use window::Window;

use crate::error::{TensorError, TensorResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What carries data between ranks. Every rank makes the same calls in the same order; each call returns when this rank's part is done.
///
/// An implementation needs no arithmetic but the largest of integers: sums of floats are computed by [`sums`], in an order that no transport changes.
///
/// With a single rank, everything is its own:
///
/// ```
/// use tensorlogic::distributed::Ranks;
///
/// let ranks = Ranks::alone();
/// let transport = ranks.transport();
/// let (mut values, mut words) = ([0.0; 2], [7]);
/// transport.exchange(&[1.0, 2.0], &[0, 2], &mut values)?; // each rank's part for this one
/// assert_eq!(transport.start_exchange(vec![3.0], &[0, 1], vec![])?.wait()?.received, [3.0]);
/// transport.gather(&mut values, &[0, 2])?;
/// transport.gather_others(&values, &mut [])?; // there are no others
/// assert!(transport.start_gather_others(values.to_vec(), vec![])?.wait()?.received.is_empty());
/// transport.max_words(&mut words)?;
/// transport.broadcast(&mut [1, 2, 3])?;
/// assert_eq!((values, words), ([1.0, 2.0], [7]));
/// assert!(transport.send(1, b"to nobody").is_err() && transport.receive(1, &mut [0; 9]).is_err());
/// assert!(transport.window()?.is_none() && !transport.library_sum(&mut values)?);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub trait Transport: Send + Sync {
    /// This process's number, from 0.
    fn rank(&self) -> usize;
    /// How many processes there are.
    fn size(&self) -> usize;
    /// This process's number among those of the same machine.
    fn local_rank(&self) -> usize;
    /// What it is, for messages: the library and its version.
    fn name(&self) -> String;
    /// All to all: rank `p` gets `from[bounds[p]..bounds[p + 1]]` of every rank, one after the other in `to`, which holds `size` parts of this rank's length.
    ///
    /// # Errors
    /// If a rank does not take part in time, or the library fails.
    fn exchange(&self, from: &[f32], bounds: &[usize], to: &mut [f32]) -> TensorResult<()>;
    /// Begins an exchange of values that the transport has until it is done; `to` is memory for what arrives, of any length. Ranks begin their exchanges in the
    /// same order, and may make other calls before they wait for the end. Without an implementation of its own, it is done when this returns.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn start_exchange(&self, from: Vec<f32>, bounds: &[usize], to: Vec<f32>) -> TensorResult<Box<dyn PendingExchange>> {
        let mut all = Exchanged { sent: from, received: to };
        all.received.resize((bounds[self.rank() + 1] - bounds[self.rank()]) * self.size(), 0.0);
        self.exchange(&all.sent, bounds, &mut all.received)?;
        Ok(Box::new(all))
    }
    /// All gather: each rank's `data[bounds[rank]..bounds[rank + 1]]` becomes everybody's.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn gather(&self, data: &mut [f32], bounds: &[usize]) -> TensorResult<()>;
    /// Everybody's values: afterwards `others` has those of all ranks but this one, in their order, each as long as `own`, which is as long on every rank.
    /// Without an implementation of its own, it is a [`Transport::gather`].
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn gather_others(&self, own: &[f32], others: &mut [f32]) -> TensorResult<()> {
        let (len, rank) = (own.len(), self.rank());
        let bounds: Vec<usize> = (0..=self.size()).map(|r| r * len).collect();
        let mut all = vec![0.0; len * self.size()];
        all[rank * len..(rank + 1) * len].copy_from_slice(own);
        self.gather(&mut all, &bounds)?;
        others[..rank * len].copy_from_slice(&all[..rank * len]);
        others[rank * len..].copy_from_slice(&all[(rank + 1) * len..]);
        Ok(())
    }
    /// Begins to gather everybody's values, as [`Transport::start_exchange`] begins an exchange; `others` is memory of any length. It may be begun while
    /// another thread of this rank waits for one that was begun before.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn start_gather_others(&self, own: Vec<f32>, others: Vec<f32>) -> TensorResult<Box<dyn PendingExchange>> {
        let mut all = Exchanged { sent: own, received: others };
        all.received.resize(all.sent.len() * (self.size() - 1), 0.0);
        self.gather_others(&all.sent, &mut all.received)?;
        Ok(Box::new(all))
    }
    /// Memory that all ranks share, where they are processes of one machine: see [`Window::open`]. All ranks call it together, once. Without an implementation
    /// of its own there is none.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn window(&self) -> TensorResult<Option<Window>> {
        Ok(None)
    }
    /// The sum over all ranks by a call of the library's own, in an order that the library chooses; false where it has none. No step of training uses it:
    /// it is what exchange, sums and gather are measured by.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn library_sum(&self, _data: &mut [f32]) -> TensorResult<bool> {
        Ok(false)
    }
    /// The largest of the ranks' words, each place by itself.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn max_words(&self, words: &mut [u64]) -> TensorResult<()>;
    /// Rank 0's bytes become everybody's.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn broadcast(&self, bytes: &mut [u8]) -> TensorResult<()>;
    /// Passes bytes to another rank, which receives as many from this one.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn send(&self, to: usize, bytes: &[u8]) -> TensorResult<()>;
    /// Takes as many bytes as that rank sends to this one; bytes of one rank arrive in their order.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn receive(&self, from: usize, bytes: &mut [u8]) -> TensorResult<()>;
    /// Ends every rank of the job now, this process with `code`.
    fn abort(&self, code: i32);
    /// Leaves the job in order. Nothing may be called after. A transport that cannot leave in time may end the process with `code` instead.
    fn leave(&self, code: i32);
}

/// The values of an exchange that is done: what this rank gave, and the parts that it got, one after the other.
pub struct Exchanged {
    /// What this rank gave.
    pub sent: Vec<f32>,
    /// Every rank's part for this one, or every other rank's values.
    pub received: Vec<f32>,
}

/// An exchange under way.
///
/// ```
/// use tensorlogic::distributed::Ranks;
/// let ranks = Ranks::alone();
/// let pending = ranks.transport().start_exchange(vec![1.0, 2.0], &[0, 2], vec![])?;
/// // … other work …
/// assert_eq!(pending.wait()?.received, [1.0, 2.0]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub trait PendingExchange: Send {
    /// Waits for its end.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    fn wait(self: Box<Self>) -> TensorResult<Exchanged>;
}

impl PendingExchange for Exchanged {
    fn wait(self: Box<Self>) -> TensorResult<Exchanged> {
        Ok(*self)
    }
}

/// What a rank says before all go on together; the most severe answer is everybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vote {
    /// Go on.
    GoOn = 0,
    /// No memory: compute this again in smaller parts.
    Again = 1,
    /// Save and end: the time or the steps that were asked for are over.
    Stop = 2,
    /// Save and end: somebody interrupted a rank.
    Interrupt = 3,
    /// A rank failed; the run ends here.
    Fail = 4,
}

impl Vote {
    const ALL: [Vote; 5] = [Vote::GoOn, Vote::Again, Vote::Stop, Vote::Interrupt, Vote::Fail];
}

/// One process, without others.
struct Alone;

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn local_rank(&self) -> usize {
        0
    }
    fn name(&self) -> String {
        "one process".into()
    }
    fn exchange(&self, from: &[f32], _: &[usize], to: &mut [f32]) -> TensorResult<()> {
        to.copy_from_slice(from);
        Ok(())
    }
    fn gather(&self, _: &mut [f32], _: &[usize]) -> TensorResult<()> {
        Ok(())
    }
    fn max_words(&self, _: &mut [u64]) -> TensorResult<()> {
        Ok(())
    }
    fn broadcast(&self, _: &mut [u8]) -> TensorResult<()> {
        Ok(())
    }
    fn send(&self, to: usize, _: &[u8]) -> TensorResult<()> {
        Err(TensorError::Rank(format!("there is no rank {to}: this process is alone")))
    }
    fn receive(&self, from: usize, _: &mut [u8]) -> TensorResult<()> {
        Err(TensorError::Rank(format!("there is no rank {from}: this process is alone")))
    }
    fn abort(&self, code: i32) {
        std::process::exit(code)
    }
    fn leave(&self, _: i32) {}
}

/// The ranks of a run, as one of them sees them. Clones are the same.
///
/// ```
/// # use tensorlogic::distributed::{Ranks, Vote};
/// # fn main() -> tensorlogic::TensorResult<()> {
/// let ranks = Ranks::alone();
/// assert_eq!((ranks.rank(), ranks.size()), (0, 1));
/// assert_eq!(ranks.agree(Vote::GoOn)?, Vote::GoOn);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Ranks {
    transport: Arc<dyn Transport>,
    /// Memory that all share, once it was asked for.
    window: Arc<OnceLock<Option<Arc<Window>>>>,
    /// Whether all know that the run has failed.
    failed: Arc<AtomicBool>,
    /// Whether another rank tells why.
    told_elsewhere: Arc<AtomicBool>,
}

impl Ranks {
    /// This process alone.
    pub fn alone() -> Ranks {
        Ranks::over(Alone)
    }

    /// The ranks that this transport connects.
    pub fn over(transport: impl Transport + 'static) -> Ranks {
        Ranks { transport: Arc::new(transport), window: Arc::default(), failed: Arc::default(), told_elsewhere: Arc::default() }
    }

    /// This process's number, from 0.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// Whether this is the rank that prints and writes files.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// What connects the ranks.
    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Memory that all ranks share; `None` where they are on several machines, or do not want it. All ranks ask for the first time together.
    ///
    /// # Errors
    /// Those of the transport.
    ///
    /// ```
    /// use tensorlogic::distributed::Ranks;
    /// assert!(Ranks::alone().window()?.is_none());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn window(&self) -> TensorResult<Option<Arc<Window>>> {
        if let Some(window) = self.window.get() {
            return Ok(window.clone());
        }
        let opened = self.transport.window()?.map(Arc::new);
        Ok(self.window.get_or_init(|| opened).clone())
    }

    /// Whether they use such memory.
    pub(crate) fn share_memory(&self) -> bool {
        self.window.get().is_some_and(Option::is_some)
    }

    /// The most severe of all ranks' votes. Whatever may fail on one rank stands before such a call, so that no rank waits for one that left.
    ///
    /// # Errors
    /// [`TensorError::Rank`] where another rank failed; those of the transport.
    ///
    /// ```
    /// use tensorlogic::distributed::{Ranks, Vote};
    /// let ranks = Ranks::alone();
    /// assert_eq!(ranks.agree(Vote::Stop)?, Vote::Stop); // nobody has a more severe vote
    /// assert!(Vote::Fail > Vote::Stop && Vote::Stop > Vote::GoOn);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn agree(&self, own: Vote) -> TensorResult<Vote> {
        let mut word = [(own as u64) << 32 | self.rank() as u64];
        self.transport.max_words(&mut word)?;
        let vote = Vote::ALL[(word[0] >> 32).min(4) as usize];
        if vote == Vote::Fail {
            self.failed.store(true, Ordering::Relaxed);
            if own != Vote::Fail {
                self.told_elsewhere.store(true, Ordering::Relaxed);
                return Err(TensorError::Rank(format!("rank {} failed", word[0] & u64::from(u32::MAX))));
            }
        }
        Ok(vote)
    }

    /// Ends the run on all ranks together: they learn of the failure when they agree next. Does nothing where they know already.
    pub fn fail(&self) {
        if self.size() > 1 && !self.failed.swap(true, Ordering::Relaxed) {
            // An error here means that they do not come: the transport has waited for as long as it may.
            if self.agree(Vote::Fail).is_err() {
                self.transport.abort(1);
            }
        }
    }

    /// The error for what all ranks have found out together; rank 0 tells it.
    pub fn all_failed(&self, message: String) -> TensorError {
        self.failed.store(true, Ordering::Relaxed);
        self.told_elsewhere.store(!self.is_first(), Ordering::Relaxed);
        TensorError::Rank(message)
    }

    /// Whether the run has failed and another rank tells why.
    pub fn is_told_elsewhere(&self) -> bool {
        self.told_elsewhere.load(Ordering::Relaxed)
    }

    /// Passes a result on, after telling the others of an error. `Ok` where all ranks have one.
    ///
    /// # Errors
    /// This rank's own, or [`TensorError::Rank`] where another failed.
    ///
    /// ```
    /// use tensorlogic::{TensorError, distributed::Ranks};
    /// let ranks = Ranks::alone();
    /// assert_eq!(ranks.all_ok(Ok(7))?, 7);
    /// let failed = ranks.all_ok::<u32>(Err(TensorError::Value("no data here".into())));
    /// assert_eq!(failed.unwrap_err().to_string(), "no data here");
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn all_ok<T>(&self, result: TensorResult<T>) -> TensorResult<T> {
        match result {
            Ok(v) => self.agree(Vote::GoOn).map(|_| v),
            Err(e) => {
                self.agree(Vote::Fail)?;
                Err(e)
            }
        }
    }

    /// What rank 0 has, on every rank; the others' own bytes do not count.
    ///
    /// # Errors
    /// Those of the transport.
    ///
    /// ```
    /// use tensorlogic::distributed::Ranks;
    /// let ranks = Ranks::alone(); // or one of many: all get what rank 0 read
    /// let settings = if ranks.is_first() { b"lr = 0.1".to_vec() } else { Vec::new() };
    /// assert_eq!(ranks.share(settings)?, b"lr = 0.1");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn share(&self, bytes: Vec<u8>) -> TensorResult<Vec<u8>> {
        let mut bytes = bytes;
        let mut len = (bytes.len() as u64).to_le_bytes();
        self.transport.broadcast(&mut len)?;
        bytes.resize(u64::from_le_bytes(len) as usize, 0);
        self.transport.broadcast(&mut bytes)?;
        Ok(bytes)
    }

    /// One word of each rank, in the order of the ranks.
    ///
    /// # Errors
    /// Those of the transport.
    ///
    /// ```
    /// use tensorlogic::distributed::Ranks;
    /// let ranks = Ranks::alone();
    /// let tokens = ranks.gather_words(1000)?; // how many tokens each rank has seen
    /// assert_eq!((tokens.len(), tokens[ranks.rank()]), (ranks.size(), 1000));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn gather_words(&self, own: u64) -> TensorResult<Vec<u64>> {
        let mut words = vec![0; self.size()];
        words[self.rank()] = own;
        self.transport.max_words(&mut words)?;
        Ok(words)
    }

    /// Which ranks differ from rank 0 in which place; empty where all have the same words.
    ///
    /// # Errors
    /// Those of the transport.
    ///
    /// ```
    /// use tensorlogic::distributed::Ranks;
    /// let ranks = Ranks::alone();
    /// let (seed, step) = (7, 100);
    /// assert!(ranks.differences(&[seed, step])?.is_empty()); // all ranks are at the same place
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn differences(&self, words: &[u64]) -> TensorResult<Vec<(usize, usize)>> {
        // The largest word and the largest inverse are both one's own only where all are equal.
        let mut ends: Vec<u64> = words.iter().flat_map(|w| [*w, !*w]).collect();
        let own = ends.clone();
        self.transport.max_words(&mut ends)?;
        if !ends.chunks(2).any(|e| e[0] != !e[1]) {
            debug_assert_eq!(own, ends);
            return Ok(Vec::new());
        }
        let mut all = vec![0; words.len() * self.size()];
        all[self.rank() * words.len()..][..words.len()].copy_from_slice(words);
        self.transport.max_words(&mut all)?;
        let first = all[..words.len()].to_vec();
        let differ = |(at, w): (usize, &u64)| (*w != first[at % words.len()]).then_some((at / words.len(), at % words.len()));
        Ok(all.iter().enumerate().filter_map(differ).collect())
    }

    /// Leaves the job in order, when all ranks are done. Where a library does not return from it in time, the process ends with 0, or with 1 where the
    /// run has failed.
    pub fn leave(&self) {
        self.leave_with(i32::from(self.failed.load(Ordering::Relaxed)));
    }

    /// Leaves the job as [`Ranks::leave`] does, with another exit code for that end.
    pub fn leave_with(&self, code: i32) {
        self.transport.leave(code);
    }
}

/// How long a rank waits for the others before it ends the job, unless told otherwise.
pub const RANK_TIMEOUT: Duration = Duration::from_secs(600);

/// The ranks that a launcher started this process with, or this process alone where there is no launcher; nothing is loaded then. A rank that waits
/// for the others longer than `timeout` passes the reason to `last_words` and ends the job.
///
/// # Errors
/// [`TensorError::Rank`] where there is a launcher and no MPI library that belongs to it: none is found, or it sees another number of ranks than the
/// launcher started.
///
/// ```
/// use tensorlogic::distributed::{Launch, RANK_TIMEOUT, join};
/// if Launch::from_env().is_none() {
///     let ranks = join(RANK_TIMEOUT, |reason| eprintln!("{reason}"))?;
///     assert_eq!((ranks.rank(), ranks.size()), (0, 1)); // no launcher: this process is alone
/// }
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn join(timeout: Duration, last_words: fn(&str)) -> TensorResult<Ranks> {
    let Some(launch) = Launch::from_env() else { return Ok(Ranks::alone()) };
    #[cfg(unix)]
    return mpi::Mpi::open(&launch, mpi::Patience { timeout, last_words }).map(Ranks::over);
    #[cfg(not(unix))]
    {
        let _ = (timeout, last_words);
        Err(TensorError::Rank(format!("started as {launch}: MPI is supported on Linux and macOS only")))
    }
}
