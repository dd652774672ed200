//! Ctrl-C: the first one asks the running command to end cleanly, the second ends the process. SIGUSR1: save and end.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether nothing runs that could be stopped: Ctrl-C then ends the process.
static IDLE: AtomicBool = AtomicBool::new(false);
/// Whether everything is done, and the process leaves others.
static LEAVING: AtomicBool = AtomicBool::new(false);
static INSTALL: Once = Once::new();

/// From here on Ctrl-C (and a termination signal) sets the flag. To be called when a loop that reads it begins: before, Ctrl-C simply ends `tl`.
pub fn install() {
    INSTALL.call_once(|| {
        // Where no handler can be set, Ctrl-C keeps its usual meaning.
        let _ = ctrlc::set_handler(|| {
            #[cfg(unix)]
            if LEAVING.load(Ordering::SeqCst) {
                // SAFETY: ends the process. Functions that libraries have for its end may wait for what did not come.
                unsafe { libc::_exit(130) };
            }
            if REQUESTED.swap(true, Ordering::SeqCst) || IDLE.load(Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
    });
}

static SAVE_AND_END: AtomicBool = AtomicBool::new(false);

/// From here on SIGUSR1, which launchers pass on to their ranks and Slurm sends before a job's time is over, asks to save and end.
pub fn install_save_and_end() {
    #[cfg(unix)]
    {
        extern "C" fn asked(_: libc::c_int) {
            SAVE_AND_END.store(true, Ordering::SeqCst);
        }
        // SAFETY: the handler does nothing but store into an atomic.
        unsafe { libc::signal(libc::SIGUSR1, asked as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// Whether SIGUSR1 asked to save and end.
pub fn save_and_end() -> bool {
    SAVE_AND_END.load(Ordering::SeqCst)
}

/// Whether the user asked to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Says that everything is done and saved: from here on Ctrl-C ends the process at once.
pub fn leave() {
    LEAVING.store(true, Ordering::SeqCst);
}

/// Says whether the command waits for the user. A request that was answered is forgotten.
pub fn idle(idle: bool) {
    IDLE.store(idle, Ordering::SeqCst);
    REQUESTED.store(false, Ordering::SeqCst);
}
