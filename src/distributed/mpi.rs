//! MPI found at run time: one set of calls over three binary interfaces (Open MPI's, MPICH's, the MPI 5 standard's), without headers or a link-time
//! dependency. Handles are machine words: addresses in Open MPI, 32-bit numbers in MPICH, small numbers in the standard interface.

use super::{Launch, Transport};
use crate::error::{TensorError, TensorResult};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Mutex;
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
}

/// What differs from one binary interface to the other.
struct Constants {
    world: Handle,
    float: Handle,
    word: Handle,
    byte: Handle,
    max: Handle,
    no_info: Handle,
    shared_memory: c_int,
    any_thread: c_int,
    in_place: usize,
    no_status: usize,
}

const MPICH: Constants = Constants {
    world: 0x4400_0000,
    float: 0x4c00_040a,
    word: 0x4c00_083e,
    byte: 0x4c00_010d,
    max: 0x5800_0001,
    no_info: 0x1c00_0000,
    shared_memory: 1,
    any_thread: 3,
    in_place: usize::MAX,
    no_status: 1,
};

/// Chapter 20 of MPI 5.0.
const STANDARD: Constants = Constants {
    world: 0x101,
    float: 0x210,
    word: 0x259,
    byte: 0x247,
    max: 0x23,
    no_info: 0x130,
    shared_memory: 221,
    any_thread: 4096,
    in_place: 1,
    no_status: 0,
};

fn open_mpi(lib: &Library) -> Result<Constants, String> {
    let handle = |name| lib.symbol(name).map(|a| a as Handle);
    Ok(Constants {
        world: handle(c"ompi_mpi_comm_world")?,
        float: handle(c"ompi_mpi_float")?,
        word: handle(c"ompi_mpi_uint64_t")?,
        byte: handle(c"ompi_mpi_byte")?,
        max: handle(c"ompi_mpi_op_max")?,
        no_info: handle(c"ompi_mpi_info_null")?,
        shared_memory: 0,
        any_thread: 3,
        in_place: 1,
        no_status: 0,
    })
}

/// How long a wait asks again and again before it sleeps between questions.
const SPIN: Duration = Duration::from_millis(1);
/// The sleep between two questions: data moves only while somebody calls the library.
const PAUSE: Duration = Duration::from_micros(50);

/// How long a rank waits for the others, and who is told when it ends the job.
pub(super) struct Patience {
    pub timeout: Duration,
    pub last_words: fn(&str),
}

/// The world of ranks that MPI knows.
pub(super) struct Mpi {
    calls: Calls,
    constants: Constants,
    name: String,
    rank: usize,
    size: usize,
    local_rank: usize,
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
        let unknown = |e: String| TensorError::Rank(format!("{file} is no MPI library that this program knows: it {e}"));
        let constants = if lib.symbol(c"ompi_mpi_comm_world").is_ok() {
            open_mpi(lib).map_err(unknown)?
        } else if file.contains("libmpi_abi") {
            STANDARD
        } else {
            MPICH
        };
        let calls = Calls::of(lib).map_err(unknown)?;
        let null = std::ptr::null_mut();
        let (mut threads, mut rank, mut size, mut local, mut machine) = (0, 0, 0, 0, 0);
        // SAFETY: called once, before anything else; the handles are the library's own.
        unsafe {
            done((calls.init)(null, null, constants.any_thread, &mut threads), "MPI_Init_thread")?;
            done((calls.rank)(constants.world, &mut rank), "MPI_Comm_rank")?;
            done((calls.size)(constants.world, &mut size), "MPI_Comm_size")?;
            let same = (constants.world, constants.shared_memory, rank, constants.no_info);
            done((calls.split_type)(same.0, same.1, same.2, same.3, &mut machine), "MPI_Comm_split_type")?;
            done((calls.rank)(machine, &mut local), "MPI_Comm_rank")?;
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
        let (rank, size, local_rank) = (rank as usize, size as usize, local as usize);
        Ok(Mpi { calls, constants, name, rank, size, local_rank, patience, turn: Mutex::new(()) })
    }

    /// Starts a call and waits until this rank's part is done. While it waits, a rank gives its core away.
    fn complete(&self, what: &str, start: impl FnOnce(&mut Handle) -> c_int) -> TensorResult<()> {
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let mut request: Handle = 0;
        done(start(&mut request), what)?;
        let began = Instant::now();
        loop {
            let mut flag = 0;
            // SAFETY: a request that was started; the status is not wanted.
            done(unsafe { (self.calls.test)(&mut request, &mut flag, self.constants.no_status as Address) }, "MPI_Test")?;
            let waited = began.elapsed();
            if flag != 0 {
                return Ok(());
            }
            if waited > self.patience.timeout {
                // Memory of the call is still the library's: nothing may go on here.
                (self.patience.last_words)(&format!("rank {}: no answer to {what} for {} s; the job ends", self.rank, waited.as_secs()));
                self.abort(1);
                std::process::abort();
            }
            if waited < SPIN { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
    }
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    fn local_rank(&self) -> usize {
        self.local_rank
    }
    fn name(&self) -> String {
        self.name.clone()
    }

    fn exchange(&self, from: &[f32], bounds: &[usize], to: &mut [f32]) -> TensorResult<()> {
        let c = &self.constants;
        let own = count(bounds[self.rank + 1] - bounds[self.rank])?;
        assert!(bounds.len() == self.size + 1 && bounds[self.size] <= from.len() && to.len() == own as usize * self.size);
        let sent: Vec<c_int> = bounds.windows(2).map(|b| count(b[1] - b[0])).collect::<TensorResult<_>>()?;
        let begins: Vec<c_int> = bounds.iter().map(|b| count(*b)).collect::<TensorResult<_>>()?;
        let places: Vec<c_int> = (0..self.size).map(|r| count(r * own as usize)).collect::<TensorResult<_>>()?;
        let received = vec![own; self.size];
        // SAFETY: the counts stay within both buffers, which outlive the wait, as the lists do.
        self.complete("the exchange of gradients", |request| unsafe {
            let (from, to) = (from.as_ptr() as Address, to.as_mut_ptr().cast());
            let (sent, begins, received, places) = (sent.as_ptr(), begins.as_ptr(), received.as_ptr(), places.as_ptr());
            (self.calls.all_to_all)(from, sent, begins, c.float, to, received, places, c.float, c.world, request)
        })
    }

    fn gather(&self, data: &mut [f32], bounds: &[usize]) -> TensorResult<()> {
        let c = &self.constants;
        assert!(bounds.len() == self.size + 1 && bounds[self.size] <= data.len());
        let counts: Vec<c_int> = bounds.windows(2).map(|b| count(b[1] - b[0])).collect::<TensorResult<_>>()?;
        let begins: Vec<c_int> = bounds.iter().map(|b| count(*b)).collect::<TensorResult<_>>()?;
        // SAFETY: in place, within the buffer, which outlives the wait, as the lists do.
        self.complete("the gathering of slices", |request| unsafe {
            let data = data.as_mut_ptr().cast();
            (self.calls.all_gather)(c.in_place as Address, 0, c.float, data, counts.as_ptr(), begins.as_ptr(), c.float, c.world, request)
        })
    }

    fn max_words(&self, words: &mut [u64]) -> TensorResult<()> {
        let c = &self.constants;
        let n = count(words.len())?;
        // SAFETY: in place, of that many words, which outlive the wait.
        self.complete("the ranks' agreement", |request| unsafe {
            (self.calls.all_reduce)(c.in_place as Address, words.as_mut_ptr().cast(), n, c.word, c.max, c.world, request)
        })
    }

    fn broadcast(&self, bytes: &mut [u8]) -> TensorResult<()> {
        let c = &self.constants;
        let n = count(bytes.len())?;
        // SAFETY: of that many bytes, which outlive the wait.
        self.complete("rank 0's settings", |request| unsafe {
            (self.calls.broadcast)(bytes.as_mut_ptr().cast(), n, c.byte, 0, c.world, request)
        })
    }

    fn send(&self, to: usize, bytes: &[u8]) -> TensorResult<()> {
        let (c, n, to) = (&self.constants, count(bytes.len())?, count(to)?);
        // SAFETY: of that many bytes, which outlive the wait; they are only read.
        self.complete("a rank that receives", |request| unsafe {
            (self.calls.send)(bytes.as_ptr() as Address, n, c.byte, to, 0, c.world, request)
        })
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> TensorResult<()> {
        let (c, n, from) = (&self.constants, count(bytes.len())?, count(from)?);
        // SAFETY: into that many bytes, which outlive the wait.
        self.complete("a rank that sends", |request| unsafe {
            (self.calls.receive)(bytes.as_mut_ptr().cast(), n, c.byte, from, 0, c.world, request)
        })
    }

    fn abort(&self, code: i32) {
        // SAFETY: the world is alive; the call ends every rank.
        unsafe { (self.calls.abort)(self.constants.world, code) };
    }

    fn leave(&self) {
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: nothing is called after.
        unsafe { (self.calls.finalize)() };
    }
}
