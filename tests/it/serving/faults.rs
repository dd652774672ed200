//! Faults of an engine: listeners that panic, memory that runs out, steps that do not end.

use super::engine::{alone, collect, engine, idle, model, prompt};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlogic::backends::cpu::CpuBackend;
use tensorlogic::serving::{Answer, Constraint, EngineOptions, Event, Refusal, Request};
use tensorlogic::{Device, TensorError, TensorResult};

#[test]
fn a_listener_that_panics_ends_its_own_request() {
    let device = Device::cpu();
    let engine = engine(&device, EngineOptions { rows: 4, ..Default::default() });
    let request = |i: usize| Request::new(&prompt(20 + i, i), 20);
    let want: Vec<Vec<u32>> = (0..3).map(|i| collect(engine.submit(request(i)).unwrap()).0).collect();
    let others: Vec<Answer> = (0..3).map(|i| engine.submit(request(i)).unwrap()).collect();
    // At a token, and at the end.
    for panics_at in [3, 20] {
        let (mut tokens, (sender, events)) = (0, channel());
        let listener = move |event| {
            let ends = matches!(event, Event::Failed(_) | Event::Finished(..));
            let _ = sender.send(format!("{event:?}"));
            tokens += usize::from(!ends);
            assert!(!(tokens == panics_at && (ends || panics_at < 20)), "as the test wants it");
        };
        let _handle = engine.submit_to(request(7), listener).unwrap();
        let heard: Vec<String> = events.iter().collect();
        let last = heard.last().unwrap();
        assert!(heard.len() == panics_at + 1 && last.contains(if panics_at < 20 { "panicked" } else { "Finished" }), "{heard:?}");
    }
    for (answer, want) in others.into_iter().zip(want) {
        assert_eq!(collect(answer).0, want);
    }
    idle(&engine);
}

#[test]
fn requests_wait_where_memory_is_short_and_go_on() {
    // A device whose limit concerns no other test.
    let device = Device::from_backend(CpuBackend::with_threads(2));
    let reference = model(&device);
    let requests: Vec<Request> = (0..4).map(|i| Request::new(&prompt(12 + i, i), 24)).collect();
    let want: Vec<Vec<u32>> = requests.iter().map(|r| alone(&*reference, &device, r).0).collect();
    let engine = engine(&device, EngineOptions { rows: 4, lookup: None, ..Default::default() });
    // What one step gives back must not serve the next.
    device.buffer_pool().set_enabled(false);
    device.empty_cache();
    let held = device.buffer_pool_stats().in_use - device.buffer_pool_stats().mapped;
    let (mut survived, mut failed, mut room) = (false, 0, 64);
    let start = Instant::now();
    // From next to nothing, in which no step fits, to what all steps find; again, where requests ended before they had to wait.
    while !(survived && failed > 0) && start.elapsed() < Duration::from_secs(60) {
        let before = engine.stats().put_back;
        let mut answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        let first: Vec<Option<Event>> = answers.iter_mut().map(Answer::next_event).collect();
        device.set_memory_limit(held + room);
        let mut all_right = true;
        for (n, ((answer, first), want)) in answers.into_iter().zip(first).zip(&want).enumerate() {
            let Some(Event::Token(token)) = first else { panic!("{first:?}") };
            let mut tokens = vec![token];
            for event in answer {
                match event {
                    Event::Token(t) => tokens.push(t),
                    Event::Failed(TensorError::OutOfMemory { .. }) => (all_right, failed) = (false, failed + 1),
                    Event::Finished(..) => assert_eq!(&tokens, want, "request {n} with {room} bytes"),
                    other => panic!("{other:?}"),
                }
            }
            // When one has ended, others may have what they need.
            device.set_memory_limit(None);
        }
        survived |= all_right && engine.stats().put_back > before;
        room = if room < 4 << 20 { room + room / 4 } else { 64 };
    }
    device.set_memory_limit(None);
    assert!(survived && failed > 0, "survived {survived}, {failed} failed");
    for (request, want) in requests.iter().zip(&want) {
        assert_eq!(&collect(engine.submit(request.clone()).unwrap()).0, want);
    }
    idle(&engine);
}

/// Does not answer until its channel is closed.
#[derive(Clone, Debug)]
struct Stuck(Arc<Mutex<Receiver<()>>>);

impl Constraint for Stuck {
    fn allow(&mut self, _: &mut [u32]) -> TensorResult<bool> {
        let _ = self.0.lock().unwrap().recv();
        Ok(true)
    }
    fn wrote(&mut self, _: u32) -> TensorResult<()> {
        Ok(())
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn an_engine_that_is_stuck_can_be_left() {
    let device = Device::cpu();
    let engine = engine(&device, EngineOptions { rows: 2, ..Default::default() });
    let (blocks, blocked) = channel();
    assert!(!engine.is_stuck(Duration::from_millis(50)));
    let plain = |i: usize| engine.submit(Request::new(&prompt(30, i), 200)).unwrap();
    let mut answers = vec![plain(1)];
    assert!(matches!(answers[0].next_event(), Some(Event::Token(_))));
    let constraint: Box<dyn Constraint> = Box::new(Stuck(Arc::new(Mutex::new(blocked))));
    answers.push(engine.submit(Request { constraint: Some(constraint), ..Request::new(&prompt(9, 2), 9) }).unwrap());
    // This one waits.
    answers.push(plain(3));
    let start = Instant::now();
    while !engine.is_stuck(Duration::from_millis(200)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", engine.in_round());
        std::thread::sleep(Duration::from_millis(10));
    }
    let start = Instant::now();
    engine.give_up(&TensorError::State("the test has had enough".into()));
    for mut answer in answers {
        let last = std::iter::from_fn(|| answer.next_event()).last();
        assert!(matches!(&last, Some(Event::Failed(e)) if e.to_string().contains("had enough")), "{last:?}");
    }
    assert!(!engine.is_running() && !engine.is_stuck(Duration::ZERO));
    assert!(matches!(engine.submit(Request::new(&[1], 1)), Err(Refusal::Stopped)));
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(5), "it was waited for");
    drop(blocks);
}
