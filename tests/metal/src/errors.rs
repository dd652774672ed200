//! Errors as Metal's calls hand them to their callers.

use crate::objc;
use objc2::rc::Retained;
use objc2_foundation::NSError;

/// An error of this code.
pub fn ns_error(code: isize, message: &str) -> Retained<NSError> {
    // SAFETY: an object of this class with a count of one.
    unsafe { Retained::from_raw(objc::error(code, message, std::ptr::null_mut()).cast()) }.unwrap()
}
/// Hands an error to a caller's out parameter.
pub fn give(to: *mut *mut NSError, e: Retained<NSError>) {
    if !to.is_null() {
        // SAFETY: a place for a pointer, by contract; it is autoreleased as Cocoa's rules say.
        unsafe { *to = Retained::autorelease_ptr(e) };
    }
}
