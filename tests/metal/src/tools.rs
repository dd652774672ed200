//! What developers look with: labels, frame captures, and the intervals of `os_signpost`.

use crate::metal::COUNTS;
use crate::objc::{self, Id, Imp, Sel};
use objc2_foundation::{NSError, NSString};
use objc2_metal::MTLCaptureDescriptor;
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// The capture that is going on: its document, and the dispatches before it.
static CAPTURE: Mutex<Option<(PathBuf, u64)>> = Mutex::new(None);

/// The methods of `MTLCaptureManager`, of which a process has one.
pub fn capture_manager_methods() {
    extern "C-unwind" fn shared(_: Id, _: Sel) -> Id {
        static ONE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let one = *ONE.get_or_init(|| objc::capture_manager() as usize) as Id;
        objc::objc_autorelease(objc::objc_retain(one))
    }
    extern "C-unwind" fn supports(_: Id, _: Sel, destination: isize) -> u8 {
        (destination == 2 && std::env::var("MTL_CAPTURE_ENABLED").is_ok_and(|v| v == "1")).into()
    }
    extern "C-unwind" fn is_capturing(_: Id, _: Sel) -> u8 {
        CAPTURE.lock().unwrap().is_some().into()
    }
    extern "C-unwind" fn start(_: Id, _: Sel, descriptor: Id, _: *mut *mut NSError) -> u8 {
        // SAFETY: by the method's contract.
        let d: &MTLCaptureDescriptor = unsafe { &*descriptor.cast() };
        assert!(d.captureObject().is_some(), "a capture of nothing");
        let path = d.outputURL().and_then(|u| u.path()).expect("a capture without a place");
        *CAPTURE.lock().unwrap() = Some((path.to_string().into(), COUNTS.dispatches.load(SeqCst)));
        1
    }
    extern "C-unwind" fn stop(_: Id, _: Sel) {
        let (path, before) = CAPTURE.lock().unwrap().take().expect("no capture is going on");
        std::fs::write(path, format!("{} dispatches", COUNTS.dispatches.load(SeqCst) - before)).unwrap();
    }
    // SAFETY: each is called with the type that its encoding says.
    unsafe {
        type Start = extern "C-unwind" fn(Id, Sel, Id, *mut *mut NSError) -> u8;
        let imp = std::mem::transmute::<extern "C-unwind" fn(Id, Sel) -> Id, Imp>(shared);
        objc::extend_capture_manager(true, c"sharedCaptureManager", imp, c"@16@0:8");
        let imp = std::mem::transmute::<extern "C-unwind" fn(Id, Sel, isize) -> u8, Imp>(supports);
        objc::extend_capture_manager(false, c"supportsDestination:", imp, c"C24@0:8q16");
        let imp = std::mem::transmute::<extern "C-unwind" fn(Id, Sel) -> u8, Imp>(is_capturing);
        objc::extend_capture_manager(false, c"isCapturing", imp, c"C16@0:8");
        objc::extend_capture_manager(
            false,
            c"startCaptureWithDescriptor:error:",
            std::mem::transmute::<Start, Imp>(start),
            c"C32@0:8@16^@24",
        );
        let imp = std::mem::transmute::<extern "C-unwind" fn(Id, Sel), Imp>(stop);
        objc::extend_capture_manager(false, c"stopCapture", imp, c"v16@0:8");
    }
}

/// The labels that were set, and on what.
pub static LABELS: Mutex<Vec<(&str, String)>> = Mutex::new(vec![]);
/// Notes a label.
pub fn labelled(what: &'static str, label: Option<&NSString>) {
    LABELS.lock().unwrap().push((what, label.map(|l| l.to_string()).unwrap_or_default()));
}

/// Whether intervals are recorded.
pub static RECORDING: AtomicBool = AtomicBool::new(false);
/// What was recorded: 1 for a begin and 2 for an end, the interval's number and its name.
pub static SIGNPOSTS: Mutex<Vec<(u8, u64, String)>> = Mutex::new(vec![]);

#[unsafe(no_mangle)]
extern "C" fn os_log_create(_subsystem: *const c_char, _category: *const c_char) -> *mut c_void {
    std::ptr::dangling_mut()
}
#[unsafe(no_mangle)]
extern "C" fn os_signpost_enabled(_log: *mut c_void) -> bool {
    RECORDING.load(SeqCst)
}
#[unsafe(no_mangle)]
extern "C" fn os_signpost_id_generate(_log: *mut c_void) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, SeqCst) + 1
}
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn _os_signpost_emit_with_name_impl(
    dso: *const c_void,
    _log: *mut c_void,
    kind: u8,
    id: u64,
    name: *const c_char,
    format: *const c_char,
    arguments: *const u8,
    bytes: u32,
) {
    // SAFETY: C strings and so many bytes, by contract.
    let (name, format, arguments) =
        unsafe { (CStr::from_ptr(name), CStr::from_ptr(format), std::slice::from_raw_parts(arguments, bytes as usize)) };
    assert!(!dso.is_null() && format.is_empty() && arguments == [0, 0], "no format has no arguments");
    SIGNPOSTS.lock().unwrap().push((kind, id, name.to_string_lossy().into_owned()));
}
