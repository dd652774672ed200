//! Commits command buffers; their completion handlers tell how far the GPU is, what failed and how long it took.

use super::device::Gpu;
use crate::backends::lock::lock;
use crate::backends::signposts::{Interval, Signpost};
use crate::error::TensorError;
use crate::events;
use block2::RcBlock;
use objc2::msg_send;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString};
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferEncoderInfo, MTLCommandBufferEncoderInfoErrorKey, MTLCommandBufferStatus,
    MTLCommandEncoderErrorState, MTLEvent,
};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// `MTLCommandBufferErrorOutOfMemory`.
const OUT_OF_MEMORY: isize = 8;

/// Where the GPU's start and end of a command buffer are left, in seconds of its own clock.
pub(super) type Times = Arc<Mutex<Option<[f64; 2]>>>;

impl Gpu {
    /// Commits a command buffer of these steps whose encoders have ended, and follows it.
    pub fn commit(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>, names: Vec<&'static str>, times: Option<Times>) {
        let (watch, number) = (self.watch.clone(), self.watch.next());
        if self.labels {
            commands.setLabel(Some(&NSString::from_str(&format!("submit {number}, {}", summary(&names)))));
        }
        let interval = Mutex::new(Signpost::begin(Interval::Submit));
        let handler = RcBlock::new(move |commands: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            // SAFETY: Metal keeps the command buffer alive while its handlers run.
            let commands = unsafe { commands.as_ref() };
            if let Some(times) = &times {
                // SAFETY: both give seconds as `double`.
                *lock(times) = Some(unsafe { [msg_send![commands, GPUStartTime], msg_send![commands, GPUEndTime]] });
            }
            drop(lock(&interval).take());
            let failed = commands.status() == MTLCommandBufferStatus::Error;
            watch.complete(number, failed.then(|| error(commands, &names, &watch.device)));
        });
        let event: &ProtocolObject<dyn MTLEvent> = ProtocolObject::from_ref(&*self.event);
        commands.encodeSignalEvent_value(event, number);
        // SAFETY: a block that takes a command buffer; the command buffer retains it.
        unsafe { commands.addCompletedHandler(RcBlock::as_ptr(&handler)) };
        self.watch.submit(number);
        commands.commit();
        events::submitted();
    }
}

/// The steps of a command buffer or encoder in a few words.
pub(super) fn summary(names: &[&str]) -> String {
    match names {
        [] => "a copy".into(),
        [only] => only.to_string(),
        [first, .., last] => format!("{} steps from {first} to {last}", names.len()),
    }
}

/// The label of the encoder that failed, where the command buffer was made to tell.
fn failed_encoder(error: &NSError) -> Option<String> {
    // SAFETY: a constant of the system's.
    let all = error.userInfo().objectForKey(unsafe { MTLCommandBufferEncoderInfoErrorKey })?;
    // SAFETY: the value of this key is an array of such objects.
    let all: Retained<NSArray<ProtocolObject<dyn MTLCommandBufferEncoderInfo>>> = unsafe { Retained::cast_unchecked(all) };
    let failed = (0..all.count()).map(|n| all.objectAtIndex(n)).find(|e| e.errorState() == MTLCommandEncoderErrorState::Faulted)?;
    Some(failed.label().to_string())
}

/// What went wrong with a command buffer of these steps.
fn error(commands: &ProtocolObject<dyn MTLCommandBuffer>, names: &[&'static str], device: &str) -> TensorError {
    let (code, why, step) = autoreleasepool(|_| match commands.error() {
        Some(e) => (e.code(), e.localizedDescription().to_string(), failed_encoder(&e)),
        None => (0, "no reason is given".into(), None),
    });
    if code == OUT_OF_MEMORY {
        let help = "the GPU had no room to run a command buffer: use a smaller batch or context, or a smaller or quantized model";
        return TensorError::OutOfMemory { device: device.into(), asked: 0, in_use: 0, limit: None, help };
    }
    let help = if names.len() > 1 && step.is_none() { "; TL_GPU_CHECKED=1 tells which" } else { "" };
    let steps = step.unwrap_or_else(|| summary(names));
    TensorError::DeviceLost(format!("a command buffer of {device} failed ({steps}{help}): {why}"))
}
