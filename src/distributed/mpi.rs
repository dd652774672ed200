//! MPI found at run time: one set of calls over three binary interfaces (Open MPI's, MPICH's, the MPI 5 standard's), without headers or a link-time
//! dependency. Handles are machine words: addresses in Open MPI, 32-bit numbers in MPICH, small numbers in the standard interface.

use super::{Exchanged, Launch, PendingExchange, Transport, Window};
use crate::error::{TensorError, TensorResult};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Handle = usize;
type Address = *mut c_void;

/// A library that stays loaded until the process ends.
struct Library(Address);

impl Library {
    fn open(name: &str) -> Result<Library, String> {
        let wrong = |e: String| format!("{name}: {e}");
        let text = CString::new(name).map_err(|e| wrong(e.to_string()))?;
        // SAFETY: loading runs the library's initializers, which are trusted as the launcher is. Open MPI's parts want its names to be global.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            // SAFETY: the message of the call before, on this thread.
            let why = unsafe { libc::dlerror() };
            let why = if why.is_null() { "not found".into() } else { unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned() };
            return Err(if why.contains(name) { why } else { wrong(why) });
        }
        Ok(Library(handle))
    }

    fn symbol(&self, name: &CStr) -> Result<Address, String> {
        // SAFETY: a library that is loaded.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() { Err(format!("has no {}", name.to_string_lossy())) } else { Ok(address) }
    }
}

macro_rules! calls {
    ($($name:ident: $symbol:literal ($($t:ty),*);)*) => {
        /// The functions in use, with the signatures that MPI 3.1 gives them.
        struct Calls { $($name: unsafe extern "C" fn($($t),*) -> c_int,)* }
        impl Calls {
            fn of(lib: &Library) -> Result<Calls, String> {
                // SAFETY: an MPI library's functions of these names have these signatures, handles being machine words or smaller.
                unsafe { Ok(Calls { $($name: std::mem::transmute::<Address, unsafe extern "C" fn($($t),*) -> c_int>(lib.symbol($symbol)?),)* }) }
            }
        }
    };
}

calls! {
    init: c"MPI_Init_thread" (Address, Address, c_int, *mut c_int);
    finalize: c"MPI_Finalize" ();
    rank: c"MPI_Comm_rank" (Handle, *mut c_int);
    size: c"MPI_Comm_size" (Handle, *mut c_int);
    split_type: c"MPI_Comm_split_type" (Handle, c_int, c_int, Handle, *mut Handle);
    version: c"MPI_Get_library_version" (*mut c_char, *mut c_int);
    abort: c"MPI_Abort" (Handle, c_int);
    broadcast: c"MPI_Ibcast" (Address, c_int, Handle, c_int, Handle, *mut Handle);
    send: c"MPI_Isend" (Address, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    receive: c"MPI_Irecv" (Address, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    all_reduce: c"MPI_Iallreduce" (Address, Address, c_int, Handle, Handle, Handle, *mut Handle);
    all_to_all: c"MPI_Ialltoallv" (Address, *const c_int, *const c_int, Handle, Address, *const c_int, *const c_int, Handle, Handle, *mut Handle);
    all_gather: c"MPI_Iallgatherv" (Address, c_int, Handle, Address, *const c_int, *const c_int, Handle, Handle, *mut Handle);
    test: c"MPI_Test" (*mut Handle, *mut c_int, Address);
    send_awaited: c"MPI_Issend" (Address, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    probe: c"MPI_Iprobe" (c_int, c_int, Handle, *mut c_int, Address);
}

/// What differs from one binary interface to the other.
struct Constants {
    world: Handle,
    float: Handle,
    /// 64 bits, signed: MPICH 4.0 takes the largest of unsigned ones as if they were signed.
    word: Handle,
    byte: Handle,
    max: Handle,
    sum: Handle,
    no_info: Handle,
    shared_memory: c_int,
    any_thread: c_int,
    /// The least level at which threads may call in turn.
    in_turn: c_int,
    in_place: usize,
    no_status: usize,
    /// Whether a job can be ended by `MPI_Abort` while `MPI_Finalize` runs.
    late_abort: bool,
}

const MPICH: Constants = Constants {
    world: 0x4400_0000,
    float: 0x4c00_040a,
    word: 0x4c00_083a,
    byte: 0x4c00_010d,
    max: 0x5800_0001,
    sum: 0x5800_0003,
    no_info: 0x1c00_0000,
    shared_memory: 1,
    any_thread: 3,
    in_turn: 2,
    in_place: usize::MAX,
    no_status: 1,
    late_abort: false,
};

/// Chapter 20 of MPI 5.0.
const STANDARD: Constants = Constants {
    world: 0x101,
    float: 0x210,
    word: 0x258,
    byte: 0x247,
    max: 0x23,
    sum: 0x21,
    no_info: 0x130,
    shared_memory: 221,
    any_thread: 4096,
    in_turn: 2048,
    in_place: 1,
    no_status: 0,
    late_abort: false,
};

fn open_mpi(lib: &Library) -> Result<Constants, String> {
    let handle = |name| lib.symbol(name).map(|a| a as Handle);
    Ok(Constants {
        world: handle(c"ompi_mpi_comm_world")?,
        float: handle(c"ompi_mpi_float")?,
        word: handle(c"ompi_mpi_int64_t")?,
        byte: handle(c"ompi_mpi_byte")?,
        max: handle(c"ompi_mpi_op_max")?,
        sum: handle(c"ompi_mpi_op_sum")?,
        no_info: handle(c"ompi_mpi_info_null")?,
        shared_memory: 0,
        any_thread: 3,
        in_turn: 2,
        in_place: 1,
        no_status: 0,
        late_abort: true,
    })
}

/// Whether the library has the standard's interface. MPICH's has the same names; its function says that it is none.
fn is_standard(lib: &Library) -> bool {
    let Ok(address) = lib.symbol(c"MPI_Abi_get_version") else { return false };
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: section 20.2 of MPI 5.0: two numbers are written, before `MPI_Init` too.
    let code =
        unsafe { std::mem::transmute::<Address, unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(address)(&mut major, &mut minor) };
    code == 0 && major >= 1
}

/// How long a wait asks again and again before it sleeps between questions.
const SPIN: Duration = Duration::from_millis(4);
/// The sleep between two questions: data moves only while somebody calls the library.
const PAUSE: Duration = Duration::from_micros(50);
/// Questions between two sleeps while data is on its way: MPICH 5.0 moves some 10 KB a question.
const BURST: u32 = 256;
/// The bytes a second of the slowest link whose data is asked for in bursts.
const LEAST_RATE: f64 = 1e8;

/// How long a rank waits for the others, and who is told when it ends the job.
pub(super) struct Patience {
    pub timeout: Duration,
    pub last_words: fn(&str),
}

/// The world of ranks that MPI knows, which exchanges under way share.
pub(super) struct Mpi(Arc<World>);

struct World {
    calls: Calls,
    constants: Constants,
    name: String,
    rank: usize,
    size: usize,
    local_rank: usize,
    /// Whether all ranks are on this machine.
    one_machine: bool,
    patience: Patience,
    /// Calls come one at a time, whichever thread makes them.
    turn: Mutex<()>,
}

fn done(code: c_int, what: &str) -> TensorResult<()> {
    if code == 0 { Ok(()) } else { Err(TensorError::Rank(format!("{what} failed with code {code}"))) }
}

/// A count as MPI takes it.
fn count(n: usize) -> TensorResult<c_int> {
    c_int::try_from(n).map_err(|_| TensorError::Unsupported(format!("{n} values in one exchange between ranks; MPI counts up to 2³¹ − 1")))
}

impl Mpi {
    /// Loads the first library that is found of those that belong to the launcher, and joins the others.
    pub fn open(launch: &Launch, patience: Patience) -> TensorResult<Mpi> {
        let mut missing = Vec::new();
        for name in launch.libraries() {
            match Library::open(&name) {
                Ok(lib) => return Mpi::of(&lib, &name, launch, patience),
                Err(e) => missing.push(e),
            }
        }
        let hint = "install it on every machine, put its folder into LD_LIBRARY_PATH, or name its file in TL_MPI";
        Err(TensorError::Rank(format!("started as {launch}, but its MPI library is not found; {hint} ({})", missing.join("; "))))
    }

    fn of(lib: &Library, file: &str, launch: &Launch, patience: Patience) -> TensorResult<Mpi> {
        let unknown = |e: String| TensorError::Rank(format!("{file} is not a supported MPI library: it {e}"));
        let constants = if lib.symbol(c"ompi_mpi_comm_world").is_ok() {
            open_mpi(lib).map_err(unknown)?
        } else if is_standard(lib) {
            STANDARD
        } else {
            MPICH
        };
        let calls = Calls::of(lib).map_err(unknown)?;
        let null = std::ptr::null_mut();
        let (mut threads, mut rank, mut size, mut local, mut local_size, mut machine) = (0, 0, 0, 0, 0, 0);
        // SAFETY: called once, before anything else; the handles are the library's own.
        unsafe {
            done((calls.init)(null, null, constants.any_thread, &mut threads), "MPI_Init_thread")?;
            if threads < constants.in_turn {
                return Err(TensorError::Rank(format!(
                    "{file} lets one thread call it (level {threads}); this program's threads call it in turn: use a build with MPI_THREAD_SERIALIZED"
                )));
            }
            done((calls.rank)(constants.world, &mut rank), "MPI_Comm_rank")?;
            done((calls.size)(constants.world, &mut size), "MPI_Comm_size")?;
            let same = (constants.world, constants.shared_memory, rank, constants.no_info);
            done((calls.split_type)(same.0, same.1, same.2, same.3, &mut machine), "MPI_Comm_split_type")?;
            done((calls.rank)(machine, &mut local), "MPI_Comm_rank")?;
            done((calls.size)(machine, &mut local_size), "MPI_Comm_size")?;
        }
        let (mut text, mut len) = (vec![0u8; 8192], 0);
        // SAFETY: the longest text of any interface fits.
        done(unsafe { (calls.version)(text.as_mut_ptr().cast(), &mut len) }, "MPI_Get_library_version")?;
        let version = String::from_utf8_lossy(&text[..usize::try_from(len).unwrap_or(0).min(text.len())]).into_owned();
        // Open MPI's first line goes on with the package's maker; MPICH's has a tab.
        let version = version.lines().next().unwrap_or("").split(", package").next().unwrap_or("").trim_end_matches('\0').to_string();
        let name = version.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(expected) = launch.size.filter(|n| *n != size as usize) {
            return Err(TensorError::Rank(format!(
                "{file} ({name}) sees {size} rank(s), the launcher started {expected}: it is not the launcher's library; name that one in TL_MPI"
            )));
        }
        if launch.size.is_none() && size == 1 {
            let m = format!(
                "started as {launch}: it does not say how many, and {file} ({name}) sees one rank; if there are more, name the launcher's library in TL_MPI"
            );
            (patience.last_words)(&m);
        }
        let (one_machine, rank, size, local_rank) = (local_size == size, rank as usize, size as usize, local as usize);
        Ok(Mpi(Arc::new(World { calls, constants, name, rank, size, local_rank, one_machine, patience, turn: Mutex::new(()) })))
    }
}

impl World {
    /// Starts a call that moves so many `bytes` and waits until this rank's part is done. While it waits, a rank gives its core away.
    fn complete(&self, what: &str, bytes: usize, start: impl FnOnce(&mut Handle) -> c_int) -> TensorResult<()> {
        let request = self.start(what, start)?;
        self.finish(what, &mut [request], bytes, SPIN)
    }

    fn start(&self, what: &str, start: impl FnOnce(&mut Handle) -> c_int) -> TensorResult<Handle> {
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let mut request: Handle = 0;
        done(start(&mut request), what)?;
        Ok(request)
    }

    /// Waits for calls that move so many `bytes`; for the time `spin` without a pause between questions, and while the bytes may be on their
    /// way with few.
    fn finish(&self, what: &str, requests: &mut [Handle], bytes: usize, spin: Duration) -> TensorResult<()> {
        let began = Instant::now();
        let mut left = requests.iter_mut().peekable();
        let moving = Duration::from_secs_f64(bytes as f64 / LEAST_RATE);
        let mut asked = 0u32;
        while let Some(request) = left.peek_mut() {
            if self.is_done(request)? {
                left.next();
                continue;
            }
            let waited = began.elapsed();
            self.has_waited(what, waited);
            asked = asked.wrapping_add(1);
            let at_once = waited < spin || waited < moving && !asked.is_multiple_of(BURST);
            if at_once { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
        Ok(())
    }

    /// Ends the job where this rank has waited for the others for too long.
    fn has_waited(&self, what: &str, waited: Duration) {
        if waited > self.patience.timeout {
            // Memory of the call is still the library's: nothing may go on here.
            (self.patience.last_words)(&format!("rank {}: no answer to {what} for {} s; the job ends", self.rank, waited.as_secs()));
            self.abort(1);
            std::process::abort();
        }
    }

    /// Whether a call is done. Data of all calls moves while this is asked.
    fn is_done(&self, request: &mut Handle) -> TensorResult<bool> {
        let mut flag = 0;
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: a request that was started; the status is not wanted.
        done(unsafe { (self.calls.test)(request, &mut flag, self.constants.no_status as Address) }, "MPI_Test")?;
        Ok(flag != 0)
    }

    /// Begins to send `own` to every other rank and to receive theirs.
    ///
    /// # Safety
    /// `others` has room for as much from each of them; both stay until the requests are done.
    unsafe fn start_all(&self, own: &[f32], others: *mut f32) -> TensorResult<Vec<Handle>> {
        let c = &self.constants;
        let n = count(own.len())?;
        let ranks = (0..self.size).filter(|r| *r != self.rank);
        // SAFETY: the caller's promise; the sent values are only read.
        let receive = |(at, rank): (usize, usize)| unsafe {
            let to = others.add(at * own.len());
            let rank = count(rank)?;
            self.start(GATHERING, |request| (self.calls.receive)(to.cast(), n, c.float, rank, VALUES, c.world, request))
        };
        let mut requests = ranks.clone().enumerate().map(receive).collect::<TensorResult<Vec<_>>>()?;
        for rank in ranks {
            let rank = count(rank)?;
            // SAFETY: as above.
            let send =
                |request: &mut Handle| unsafe { (self.calls.send)(own.as_ptr() as Address, n, c.float, rank, VALUES, c.world, request) };
            requests.push(self.start(GATHERING, send)?);
        }
        Ok(requests)
    }

    /// Passes a last message around: each rank knows that its neighbours have come to the end.
    fn last_messages(&self) -> TensorResult<()> {
        let c = &self.constants;
        let (to, from) = (count((self.rank + 1) % self.size)?, count(self.before())?);
        let (own, mut other) = ([0u8], [0u8]);
        const WHAT: &str = "the last message";
        // SAFETY: a byte each, which outlive the wait.
        let mut requests = unsafe {
            [
                self.start(WHAT, |r| (self.calls.receive)(other.as_mut_ptr().cast(), 1, c.byte, from, LAST, c.world, r))?,
                self.start(WHAT, |r| (self.calls.send_awaited)(own.as_ptr() as Address, 1, c.byte, to, LAST, c.world, r))?,
            ]
        };
        self.finish(WHAT, &mut requests, 1, SPIN)
    }

    /// The rank before this one, in a ring.
    fn before(&self) -> usize {
        (self.rank + self.size - 1) % self.size
    }

    /// Helps messages on their way for a while: over TCP two ranks of MPICH were seen to wait for a message of one that had left.
    fn help(&self) -> TensorResult<()> {
        let (c, from) = (&self.constants, count(self.before())?);
        let began = Instant::now();
        while began.elapsed() < LAST_HELP {
            let mut flag = 0;
            let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
            // SAFETY: asks for a message that nobody sends; the status is not wanted.
            done(unsafe { (self.calls.probe)(from, LAST, c.world, &mut flag, c.no_status as Address) }, "MPI_Iprobe")?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends the job with `code` if this process has not left MPI in time. MPICH's ranks close their connections one by one and then wait for all at the
    /// launcher, where nothing moves any more: with four over UCX and TCP, three were seen to ask without end for the fourth, which waited there.
    fn leave_in_time(self: &Arc<World>, code: c_int) {
        let world = self.clone();
        let watch = move || {
            let limit = world.patience.timeout.min(LEAVE_TIMEOUT);
            // Rank 0 tells it; the others step in where it has left already.
            std::thread::sleep(limit + if world.rank == 0 { Duration::ZERO } else { LEAVE_TURN });
            let m = format!("rank {}: nothing is left to do, but MPI_Finalize has not returned for {} s", world.rank, limit.as_secs_f64());
            (world.patience.last_words)(&format!("{m}; the job ends without it"));
            world.end_job(code);
            std::thread::sleep(LEAVE_TURN);
            // SAFETY: ends the process. The library's functions for its end may wait for the same as the call that does not return.
            unsafe { libc::_exit(code) };
        };
        // Where no thread is to be had, nothing watches.
        let _ = std::thread::Builder::new().name("tl-leave".into()).spawn(watch);
    }

    /// Ends every rank while `MPI_Finalize` runs, so that the launcher ends with `code`. MPICH has no communicator then, and where one rank ends without
    /// a word its launcher kills the others and fails; so it is told by the line of PMI, version 1, that `MPI_Abort` writes.
    fn end_job(&self, code: c_int) {
        if self.constants.late_abort {
            self.abort(code);
        } else if let Some(launcher) = std::env::var("PMI_FD").ok().and_then(|n| n.parse::<c_int>().ok()) {
            std::thread::sleep(ABORT_DELAY);
            let line = format!("cmd=abort exitcode={code}\n");
            // SAFETY: the launcher's own descriptor; the line outlives the call. Where it is closed, nothing is written.
            unsafe { libc::write(launcher, line.as_ptr().cast(), line.len()) };
        }
    }

    /// Ends every rank. What this one wrote last is given time to pass the launcher: MPICH's ends with the job, read or not.
    fn abort(&self, code: i32) {
        std::thread::sleep(ABORT_DELAY);
        // SAFETY: the world is alive; the call ends every rank.
        unsafe { (self.calls.abort)(self.constants.world, code) };
    }
}

/// How many values an exchange moves from where to where.
struct Counts {
    sent: Vec<c_int>,
    begins: Vec<c_int>,
    received: Vec<c_int>,
    places: Vec<c_int>,
}

impl Counts {
    fn new(world: &World, from: usize, bounds: &[usize], to: usize) -> TensorResult<Counts> {
        let own = bounds[world.rank + 1] - bounds[world.rank];
        assert!(bounds.len() == world.size + 1 && bounds[world.size] <= from && to == own * world.size);
        Ok(Counts {
            sent: bounds.windows(2).map(|b| count(b[1] - b[0])).collect::<TensorResult<_>>()?,
            begins: bounds.iter().map(|b| count(*b)).collect::<TensorResult<_>>()?,
            received: vec![count(own)?; world.size],
            places: (0..world.size).map(|r| count(r * own)).collect::<TensorResult<_>>()?,
        })
    }

    /// Begins the exchange of `from` and `to`.
    ///
    /// # Safety
    /// The memory is as large as was said to `new`, and it and these counts stay until the request is done.
    unsafe fn exchange(&self, world: &World, from: *const f32, to: *mut f32, request: &mut Handle) -> c_int {
        let c = &world.constants;
        let (sent, begins, received, places) = (self.sent.as_ptr(), self.begins.as_ptr(), self.received.as_ptr(), self.places.as_ptr());
        // SAFETY: the caller's promise.
        unsafe { (world.calls.all_to_all)(from as Address, sent, begins, c.float, to.cast(), received, places, c.float, c.world, request) }
    }
}

const EXCHANGE: &str = "the exchange of gradients";
const GATHERING: &str = "the gathering of all ranks' values";
/// The tag of values that all ranks give each other; other messages have 0.
const VALUES: c_int = 1;
/// The tag of a rank's last message, and how long it helps messages on their way afterwards.
const LAST: c_int = 2;
const LAST_HELP: Duration = Duration::from_millis(100);
/// The longest wait for `MPI_Finalize`; a shorter timeout of the ranks is the limit instead.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How much later than rank 0 others end the job, and how long a launcher has for its end.
const LEAVE_TURN: Duration = Duration::from_secs(2);
/// How long before it ends a job a rank waits for what it wrote to be read.
const ABORT_DELAY: Duration = Duration::from_millis(300);
/// Bytes from which a thread asks for the end of an exchange; smaller ones are done about as soon as one is there.
const THREAD_BYTES: usize = 256 << 10;

/// An exchange under way. A thread asks for its end, since data moves only while somebody calls the library.
struct Running {
    world: Arc<World>,
    /// Memory of the call, the library's until the end.
    all: Exchanged,
    _counts: Option<Counts>,
    requests: Vec<Handle>,
    what: &'static str,
    thread: Option<JoinHandle<TensorResult<()>>>,
    over: bool,
}

impl Running {
    /// Exchanges that were started with memory of `all`.
    fn new(world: &Arc<World>, what: &'static str, all: Exchanged, counts: Option<Counts>, requests: Vec<Handle>) -> Running {
        let bytes = size_of_val(&all.received[..]);
        let (asking, mut asked) = (world.clone(), requests.clone());
        // Where no thread is to be had, whoever waits asks for the end.
        let ask = move || asking.finish(what, &mut asked, bytes, Duration::ZERO);
        let thread = (bytes >= THREAD_BYTES).then(|| std::thread::Builder::new().name("tl-exchange".into()).spawn(ask).ok());
        Running { world: world.clone(), all, _counts: counts, requests, what, thread: thread.flatten(), over: false }
    }

    fn end(&mut self) -> TensorResult<()> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|_| Err(TensorError::Rank(format!("the thread of {} panicked", self.what)))),
            None => self.world.finish(self.what, &mut self.requests, size_of_val(&self.all.received[..]), SPIN),
        }
    }
}

impl PendingExchange for Running {
    fn wait(mut self: Box<Self>) -> TensorResult<Exchanged> {
        self.end()?;
        Ok(Exchanged { sent: std::mem::take(&mut self.all.sent), received: std::mem::take(&mut self.all.received) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its memory must not go before.
        let _ = self.end();
    }
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.0.rank
    }
    fn size(&self) -> usize {
        self.0.size
    }
    fn local_rank(&self) -> usize {
        self.0.local_rank
    }
    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn exchange(&self, from: &[f32], bounds: &[usize], to: &mut [f32]) -> TensorResult<()> {
        let counts = Counts::new(&self.0, from.len(), bounds, to.len())?;
        // SAFETY: the counts stay within both buffers, which outlive the wait, as the lists do.
        self.0.complete(EXCHANGE, size_of_val(to), |request| unsafe { counts.exchange(&self.0, from.as_ptr(), to.as_mut_ptr(), request) })
    }

    fn start_exchange(&self, from: Vec<f32>, bounds: &[usize], to: Vec<f32>) -> TensorResult<Box<dyn PendingExchange>> {
        let mut all = Exchanged { sent: from, received: to };
        all.received.resize((bounds[self.0.rank + 1] - bounds[self.0.rank]) * self.0.size, 0.0);
        let counts = Counts::new(&self.0, all.sent.len(), bounds, all.received.len())?;
        // SAFETY: buffers and lists are on the heap, and stay in `Running` until the request is done.
        let start = |request: &mut Handle| unsafe { counts.exchange(&self.0, all.sent.as_ptr(), all.received.as_mut_ptr(), request) };
        let request = self.0.start(EXCHANGE, start)?;
        Ok(Box::new(Running::new(&self.0, EXCHANGE, all, Some(counts), vec![request])))
    }

    fn gather_others(&self, own: &[f32], others: &mut [f32]) -> TensorResult<()> {
        assert!(others.len() == own.len() * (self.0.size - 1));
        // SAFETY: both buffers outlive the wait.
        let mut requests = unsafe { self.0.start_all(own, others.as_mut_ptr())? };
        self.0.finish(GATHERING, &mut requests, size_of_val(others), SPIN)
    }

    fn start_gather_others(&self, own: Vec<f32>, others: Vec<f32>) -> TensorResult<Box<dyn PendingExchange>> {
        let mut all = Exchanged { sent: own, received: others };
        all.received.resize(all.sent.len() * (self.0.size - 1), 0.0);
        // SAFETY: buffers are on the heap, and stay in `Running` until the requests are done.
        let requests = unsafe { self.0.start_all(&all.sent, all.received.as_mut_ptr())? };
        Ok(Box::new(Running::new(&self.0, GATHERING, all, None, requests)))
    }

    fn gather(&self, data: &mut [f32], bounds: &[usize]) -> TensorResult<()> {
        let c = &self.0.constants;
        assert!(bounds.len() == self.0.size + 1 && bounds[self.0.size] <= data.len());
        let counts: Vec<c_int> = bounds.windows(2).map(|b| count(b[1] - b[0])).collect::<TensorResult<_>>()?;
        let begins: Vec<c_int> = bounds.iter().map(|b| count(*b)).collect::<TensorResult<_>>()?;
        // SAFETY: in place, within the buffer, which outlives the wait, as the lists do.
        self.0.complete("the gathering of slices", size_of_val(data), |request| unsafe {
            let data = data.as_mut_ptr().cast();
            (self.0.calls.all_gather)(c.in_place as Address, 0, c.float, data, counts.as_ptr(), begins.as_ptr(), c.float, c.world, request)
        })
    }

    fn window(&self) -> TensorResult<Option<Window>> {
        let world = self.0.clone();
        let wanted = world.one_machine && std::env::var("TL_SHARED_WINDOW").map_or(true, |v| v != "0");
        Window::open(self, wanted, move |what, waited| world.has_waited(what, waited))
    }

    fn library_sum(&self, data: &mut [f32]) -> TensorResult<bool> {
        let c = &self.0.constants;
        let n = count(data.len())?;
        // SAFETY: in place, of that many values, which outlive the wait.
        self.0.complete("the library's sum", size_of_val(data), |request| unsafe {
            (self.0.calls.all_reduce)(c.in_place as Address, data.as_mut_ptr().cast(), n, c.float, c.sum, c.world, request)
        })?;
        Ok(true)
    }

    fn max_words(&self, words: &mut [u64]) -> TensorResult<()> {
        let c = &self.0.constants;
        let n = count(words.len())?;
        // With the first bit the other way round, signed numbers are in the order of unsigned ones.
        let flip_first_bit = |words: &mut [u64]| words.iter_mut().for_each(|w| *w ^= 1 << 63);
        flip_first_bit(words);
        // SAFETY: in place, of that many words, which outlive the wait.
        self.0.complete("the ranks' agreement", size_of_val(words), |request| unsafe {
            (self.0.calls.all_reduce)(c.in_place as Address, words.as_mut_ptr().cast(), n, c.word, c.max, c.world, request)
        })?;
        flip_first_bit(words);
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> TensorResult<()> {
        let c = &self.0.constants;
        let n = count(bytes.len())?;
        // SAFETY: of that many bytes, which outlive the wait.
        self.0.complete("rank 0's settings", bytes.len(), |request| unsafe {
            (self.0.calls.broadcast)(bytes.as_mut_ptr().cast(), n, c.byte, 0, c.world, request)
        })
    }

    fn send(&self, to: usize, bytes: &[u8]) -> TensorResult<()> {
        let (c, n, to) = (&self.0.constants, count(bytes.len())?, count(to)?);
        // SAFETY: of that many bytes, which outlive the wait; they are only read.
        self.0.complete("a rank that receives", bytes.len(), |request| unsafe {
            (self.0.calls.send)(bytes.as_ptr() as Address, n, c.byte, to, 0, c.world, request)
        })
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> TensorResult<()> {
        let (c, n, from) = (&self.0.constants, count(bytes.len())?, count(from)?);
        // SAFETY: into that many bytes, which outlive the wait.
        self.0.complete("a rank that sends", bytes.len(), |request| unsafe {
            (self.0.calls.receive)(bytes.as_mut_ptr().cast(), n, c.byte, from, 0, c.world, request)
        })
    }

    fn abort(&self, code: i32) {
        self.0.abort(code);
    }

    fn leave(&self, code: i32) {
        if self.0.size > 1 {
            // What fails here has no bearing on what was computed. Nobody's time begins before all are here.
            let _ = self.max_words(&mut [0]).and_then(|()| self.0.last_messages());
            self.0.leave_in_time(code);
            let _ = self.0.help();
        }
        let _turn = self.0.turn.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: nothing is called after.
        unsafe { (self.0.calls.finalize)() };
    }
}
