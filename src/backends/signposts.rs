//! Intervals that Instruments shows (`os_signpost`): while a plan is encoded, from a submit until the GPU is through with it, and while the host waits.
//!
//! Where nobody records them, an interval is one question to the system.

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

/// `OS_SIGNPOST_INTERVAL_BEGIN` and `OS_SIGNPOST_INTERVAL_END`.
const BEGIN: u8 = 1;
const END: u8 = 2;
/// The encoding of no arguments (`__builtin_os_log_format` of an empty format).
const NO_ARGUMENTS: [u8; 2] = [0; 2];

/// Declares texts where the system looks for those of its log: they are stored once, and records name their places.
macro_rules! log_texts {
    ($($name:ident = $text:literal;)*) => { $(
        #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__TEXT,__oslogstring,cstring_literals"))]
        static $name: [u8; $text.len()] = *$text;
    )* };
}
log_texts! {
    PLAN = b"plan\0";
    SUBMIT = b"submit\0";
    WAIT = b"wait\0";
    FORMAT = b"\0";
}

// SAFETY: the types of os/log.h and os/signpost.h.
unsafe extern "C" {
    fn os_log_create(subsystem: *const c_char, category: *const c_char) -> *mut c_void;
    fn os_signpost_enabled(log: *mut c_void) -> bool;
    fn os_signpost_id_generate(log: *mut c_void) -> u64;
    fn _os_signpost_emit_with_name_impl(
        dso: *const c_void,
        log: *mut c_void,
        kind: u8,
        id: u64,
        name: *const c_char,
        format: *const c_char,
        arguments: *const u8,
        bytes: u32,
    );
    /// The program or library that a text is part of.
    #[link_name = "__dso_handle"]
    static DSO_HANDLE: u8;
}

/// What an interval stands for.
#[derive(Clone, Copy)]
pub(super) enum Interval {
    /// A run of a plan is encoded.
    Plan,
    /// A command buffer is on its way or running.
    Submit,
    /// The host waits for the GPU.
    Wait,
}

/// The log of the system that intervals go to.
struct Log(*mut c_void);
// SAFETY: logs of the system may be used by any thread, and are never freed.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

fn log() -> *mut c_void {
    static LOG: OnceLock<Log> = OnceLock::new();
    // SAFETY: two C strings.
    LOG.get_or_init(|| Log(unsafe { os_log_create(c"tensorlogic".as_ptr(), c"Metal".as_ptr()) })).0
}

/// An interval that has begun; dropping it ends it, on any thread.
pub(super) struct Signpost {
    interval: Interval,
    id: u64,
}

impl Signpost {
    /// Begins an interval where somebody records them.
    #[inline]
    pub fn begin(interval: Interval) -> Option<Signpost> {
        let log = log();
        // SAFETY: a log of `os_log_create`.
        if !unsafe { os_signpost_enabled(log) } {
            return None;
        }
        // SAFETY: as above.
        let s = Signpost { interval, id: unsafe { os_signpost_id_generate(log) } };
        s.emit(BEGIN);
        Some(s)
    }

    fn emit(&self, kind: u8) {
        let name = match self.interval {
            Interval::Plan => PLAN.as_ptr(),
            Interval::Submit => SUBMIT.as_ptr(),
            Interval::Wait => WAIT.as_ptr(),
        };
        let (arguments, bytes) = (NO_ARGUMENTS.as_ptr(), NO_ARGUMENTS.len() as u32);
        // SAFETY: texts that end with a zero and live for ever; the arguments are those of the format.
        unsafe {
            let dso = (&raw const DSO_HANDLE).cast();
            _os_signpost_emit_with_name_impl(dso, log(), kind, self.id, name.cast(), FORMAT.as_ptr().cast(), arguments, bytes);
        }
    }
}

impl Drop for Signpost {
    fn drop(&mut self) {
        self.emit(END);
    }
}
