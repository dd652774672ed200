//! Ranks that are threads of one process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use tensorlogic::TensorResult;
use tensorlogic::distributed::{Ranks, Transport, Window};

/// What the threads of one job share.
struct Job {
    barrier: Barrier,
    /// What each rank gave to the call under way.
    floats: Vec<Mutex<Vec<f32>>>,
    words: Vec<Mutex<Vec<u64>>>,
    bytes: Mutex<Vec<u8>>,
    /// What was sent and not received, by sender and receiver.
    mail: Mutex<HashMap<(usize, usize), VecDeque<u8>>>,
    arrived: Condvar,
}

/// A transport between threads of one process.
struct Thread {
    rank: usize,
    job: Arc<Job>,
    /// Whether gradients pass through shared memory.
    shared: bool,
}

impl Thread {
    /// All give, then all take; the next call begins when everybody has taken.
    fn all(&self, give: impl FnOnce(&Job), take: impl FnOnce(&Job)) -> TensorResult<()> {
        give(&self.job);
        self.job.barrier.wait();
        take(&self.job);
        self.job.barrier.wait();
        Ok(())
    }
}

impl Transport for Thread {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.job.floats.len()
    }
    fn local_rank(&self) -> usize {
        self.rank
    }
    fn name(&self) -> String {
        "threads".into()
    }
    fn exchange(&self, from: &[f32], bounds: &[usize], to: &mut [f32]) -> TensorResult<()> {
        let own = bounds[self.rank]..bounds[self.rank + 1];
        let take = |job: &Job| {
            to.chunks_mut(own.len().max(1))
                .zip(&job.floats)
                .for_each(|(part, all)| part.copy_from_slice(&all.lock().unwrap()[own.clone()]));
        };
        self.all(|job| *job.floats[self.rank].lock().unwrap() = from.to_vec(), take)
    }
    fn gather(&self, data: &mut [f32], bounds: &[usize]) -> TensorResult<()> {
        let own = data.to_vec();
        let take = |job: &Job| {
            for (b, all) in bounds.windows(2).zip(&job.floats) {
                data[b[0]..b[1]].copy_from_slice(&all.lock().unwrap()[b[0]..b[1]]);
            }
        };
        self.all(|job| *job.floats[self.rank].lock().unwrap() = own, take)
    }
    fn window(&self) -> TensorResult<Option<Window>> {
        Window::open(self, self.shared, |what, waited| assert!(waited.as_secs() < 60, "{what}"))
    }
    fn max_words(&self, words: &mut [u64]) -> TensorResult<()> {
        let own = words.to_vec();
        let take = |job: &Job| {
            for all in &job.words {
                let all = all.lock().unwrap();
                assert_eq!(all.len(), words.len(), "ranks agree on different things");
                words.iter_mut().zip(all.iter()).for_each(|(a, b)| *a = (*a).max(*b));
            }
        };
        self.all(|job| *job.words[self.rank].lock().unwrap() = own, take)
    }
    fn broadcast(&self, bytes: &mut [u8]) -> TensorResult<()> {
        let own = bytes.to_vec();
        let give = |job: &Job| {
            if self.rank == 0 {
                *job.bytes.lock().unwrap() = own;
            }
        };
        self.all(give, |job| bytes.copy_from_slice(&job.bytes.lock().unwrap()))
    }
    fn send(&self, to: usize, bytes: &[u8]) -> TensorResult<()> {
        self.job.mail.lock().unwrap().entry((self.rank, to)).or_default().extend(bytes);
        self.job.arrived.notify_all();
        Ok(())
    }
    fn receive(&self, from: usize, bytes: &mut [u8]) -> TensorResult<()> {
        let mut mail = self.job.mail.lock().unwrap();
        loop {
            let here = mail.entry((from, self.rank)).or_default();
            let count = bytes.len();
            if here.len() >= count {
                bytes.iter_mut().zip(here.drain(..count)).for_each(|(to, b)| *to = b);
                return Ok(());
            }
            mail = self.job.arrived.wait(mail).unwrap();
        }
    }
    fn abort(&self, code: i32) {
        std::process::exit(code)
    }
    fn leave(&self, _: i32) {}
}

/// Runs `f` as each of `size` ranks; their results by rank.
pub fn run<T: Send>(size: usize, f: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    run_by(false, size, f)
}

/// The same, whose gradients pass through shared memory or not.
pub fn run_by<T: Send>(shared: bool, size: usize, f: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let job = Arc::new(Job {
        barrier: Barrier::new(size),
        floats: (0..size).map(|_| Mutex::default()).collect(),
        words: (0..size).map(|_| Mutex::default()).collect(),
        bytes: Mutex::default(),
        mail: Mutex::default(),
        arrived: Condvar::new(),
    });
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (job, f) = (job.clone(), &f);
                scope.spawn(move || f(Ranks::over(Thread { rank, job, shared })))
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}
