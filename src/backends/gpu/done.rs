//! Waiting for the GPU without blocking a thread.

use super::driver::Driver;
use crate::backends::lock::lock;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct State {
    done: bool,
    waker: Option<Waker>,
}

/// Ready when everything that was submitted before it was made is done.
pub(super) struct Done {
    driver: Arc<Driver>,
    state: Arc<Mutex<State>>,
}

impl Done {
    pub fn new(driver: &Arc<Driver>) -> Done {
        let state: Arc<Mutex<State>> = Arc::default();
        let answer = state.clone();
        driver.queue.on_submitted_work_done(move || {
            let mut s = lock(&answer);
            s.done = true;
            if let Some(w) = s.waker.take() {
                w.wake();
            }
        });
        Done { driver: driver.clone(), state }
    }
}

impl Future for Done {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The answer comes from within this call, or in a browser by itself. A lost device is seen by whoever reads next.
        let lost = self.driver.device.poll(wgpu::PollType::Poll).is_err();
        let mut s = lock(&self.state);
        if s.done || lost {
            return Poll::Ready(());
        }
        s.waker = Some(cx.waker().clone());
        drop(s);
        // Nobody else drives the device: ask to be called again, after whatever else the executor has to do.
        #[cfg(not(target_arch = "wasm32"))]
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
