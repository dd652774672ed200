//! The scheduler against a model of it: random requests, cancellations and arrivals, with a memory in which each position knows its whole text.

use super::*;
use std::collections::{HashMap, VecDeque};

/// Random numbers (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// What a position holds: a hash of the name and all tokens up to it.
fn state(before: u64, token: u32) -> u64 {
    (before ^ u64::from(token).wrapping_add(0x9E37_79B9)).wrapping_mul(0xFF51_AFD7_ED55_8CCD).rotate_left(29)
}

fn name_state(name: &str) -> u64 {
    name.bytes().fold(7, |h, b| state(h, u32::from(b)))
}

struct Model {
    scheduler: Scheduler,
    /// What was written to each slot.
    memory: Vec<u64>,
    /// Of each row its name, and what it is to have at the end.
    known: HashMap<RowId, (Arc<str>, usize, usize)>,
    /// Rows of work whose results have not arrived, and behind how many tokens each belongs.
    flight: VecDeque<Vec<(RowId, usize)>>,
    served: usize,
    /// Tokens that each row found.
    found: HashMap<RowId, usize>,
    steps: [usize; 4],
    /// Drafts for which there was no room, and others.
    drafts: [usize; 2],
    /// Whether work finds no memory now and then; what was given out so far, and rows that had to end for it.
    short: bool,
    given: usize,
    ended: usize,
    /// How long steps took that read since one that wrote.
    waited: Duration,
}

const BETWEEN_WRITES: Duration = Duration::from_millis(200);

/// How long a step takes that reads this shape.
fn time_of([rows, tokens]: [usize; 2]) -> Duration {
    Duration::from_millis((rows * tokens) as u64)
}

impl Model {
    fn new(limits: Limits) -> Model {
        let memory = vec![0; (limits.pages + 1) * PAGE];
        let scheduler = Scheduler::new(limits);
        let (known, flight, found) = (HashMap::new(), VecDeque::new(), HashMap::new());
        Model {
            scheduler,
            memory,
            known,
            flight,
            served: 0,
            found,
            steps: [0; 4],
            drafts: [0; 2],
            short: false,
            given: 0,
            ended: 0,
            waited: Duration::ZERO,
        }
    }

    fn check(&self) {
        let rows: Vec<Vec<RowPage>> = self.scheduler.rows.values().map(|r| r.pages.clone()).collect();
        self.scheduler.pages.check(&rows);
        for (id, row) in &self.scheduler.rows {
            assert_eq!(row.active, !self.scheduler.waiting.contains(id));
            assert!(row.active || row.pages.is_empty());
        }
    }

    /// Writes positions `start..start + len` of a row, whose earlier ones must be its own text's.
    fn write(&mut self, id: RowId, start: usize, len: usize) {
        let row = &self.scheduler.rows[&id];
        let mut now = name_state(&row.name);
        for at in 0..start + len {
            let page = row.pages[at / PAGE];
            let slot = page.page as usize * PAGE + at % PAGE;
            assert_ne!(page.page, 0);
            // The token of a step that has not arrived: what the device knows is what will arrive.
            let token = row.tokens.get(at).copied().unwrap_or_else(|| written(id, at));
            now = state(now, token);
            if at < start {
                assert_eq!(self.memory[slot], now, "row {id} reads another text at {at} of {start}");
            } else {
                assert_eq!(page.node, None, "row {id} writes into a page that others have");
                self.memory[slot] = now;
            }
        }
    }

    fn arrive(&mut self) {
        for (id, at) in self.flight.pop_front().into_iter().flatten() {
            assert_eq!(self.scheduler.rows.get(&id).map_or(at, |r| r.tokens.len()), at, "row {id} is given a token of another place");
            if self.scheduler.wrote(id, written(id, at)) && self.scheduler.is_complete(id) {
                let (_, prompt, most) = self.known[&id];
                assert_eq!(self.scheduler.rows[&id].tokens.len(), prompt + most);
                self.found.insert(id, self.scheduler.cached_tokens(id));
                assert!(self.scheduler.end(id, true));
                self.known.remove(&id);
                self.served += 1;
            }
        }
    }

    /// A draft of up to `len` tokens, of which some are right: what is behind those is nobody's text.
    fn check_draft(&mut self, id: RowId, len: usize, right: usize) {
        let room = self.scheduler.extend(id, len);
        assert!(room <= len);
        let (start, right) = (self.scheduler.read_tokens(id) - 1, right % (room + 1));
        self.write(id, start, 1 + room);
        for at in start + 1 + right..start + 1 + room {
            let slot = self.scheduler.rows[&id].pages[at / PAGE].page as usize * PAGE + at % PAGE;
            self.memory[slot] = 0;
        }
        for n in 0..=right {
            if n > 0 {
                self.scheduler.advance(id);
            }
            self.flight.push_back(vec![(id, start + 1 + n)]);
            self.arrive();
        }
        self.drafts[usize::from(room > 0)] += 1;
    }

    fn step(&mut self, depth: usize) -> bool {
        let writing = self.scheduler.rows.values().any(Row::writes);
        let work = self.scheduler.next(!self.flight.is_empty());
        match &work {
            Work::Read(shape, _) => {
                let time = time_of(*shape);
                assert!(!writing || self.waited.is_zero() || self.waited + time <= BETWEEN_WRITES, "answers wait {:?}", self.waited + time);
                self.waited += time;
            }
            Work::Write(_) => self.waited = Duration::ZERO,
            _ => {}
        }
        self.given += usize::from(matches!(work, Work::Read(..) | Work::Write(_)));
        if self.short && self.given.is_multiple_of(23) {
            while !self.flight.is_empty() {
                self.arrive();
            }
            self.scheduler.undo(&work);
            if let HeldBack::Ends(id) = self.scheduler.hold_back() {
                assert!(self.scheduler.end(id, false));
                self.known.remove(&id);
                self.ended += 1;
            }
            self.check();
            return true;
        }
        match &work {
            Work::Read(shape, chunks) => {
                self.steps[0] += 1;
                assert!(!chunks.is_empty() && chunks.len() <= shape[0] && chunks.iter().all(|c| c.len <= shape[1]));
                chunks.iter().for_each(|c| self.write(c.row, c.start, c.len));
                // As the engine does: what was read is waited for.
                self.flight.push_back(chunks.iter().filter(|c| c.ends).map(|c| (c.row, c.start + c.len)).collect());
                while !self.flight.is_empty() {
                    self.arrive();
                }
            }
            Work::Write(rows) if self.flight.is_empty() && self.steps[1] % 3 == 0 => {
                self.steps[1] += 1;
                for (n, &id) in rows.iter().enumerate() {
                    self.check_draft(id, [0, 3, 7, 70][(self.steps[1] + n) % 4], self.steps[1] / 4);
                }
            }
            Work::Write(rows) => {
                self.steps[1] += 1;
                for &id in rows {
                    self.write(id, self.scheduler.read_tokens(id) - 1, 1);
                }
                self.flight.push_back(rows.iter().map(|&id| (id, self.scheduler.read_tokens(id))).collect());
                while self.flight.len() > depth {
                    self.arrive();
                }
            }
            Work::Wait => {
                self.steps[2] += 1;
                self.arrive();
            }
            Work::Idle => self.steps[3] += 1,
        }
        self.check();
        work != Work::Idle
    }
}

/// The token that row `id` writes at a position; few different ones, so that texts have equal beginnings.
fn written(id: RowId, at: usize) -> u32 {
    ((id % 3) as u32 * 7 + at as u32) % 5
}

fn limits(pages: usize, reserve: Option<usize>) -> Limits {
    let share_written = reserve.is_some();
    // Where answers are to have the same bits whatever happens, there is one shape.
    let shapes = if share_written { vec![[1, 32], [4, 32], [1, 128], [2, 128]] } else { vec![[3, 64]] };
    let shapes = shapes.into_iter().map(|s| (s, time_of(s))).collect();
    Limits {
        rows: 6,
        waiting: 12,
        pages,
        context: 1000,
        shapes,
        between_writes: BETWEEN_WRITES,
        reserve,
        prefix_pages: 2 - usize::from(share_written),
        share_written,
    }
}

/// Random events; in the end everyone who did not leave has been served, and no page is missing.
fn run(limits: Limits, depth: usize, events: usize, seed: u64, short: bool) -> Model {
    let mut random = Random(seed);
    let mut m = Model { short, ..Model::new(limits.clone()) };
    let names: [Arc<str>; 2] = ["a".into(), "b".into()];
    let (mut id, mut taken, mut left) = (0, 0, 0);
    for _ in 0..events {
        match random.below(10) {
            0..=2 => {
                id += 1;
                // Some prompts are longer than any may be; many begin alike.
                let most = [40, 300, limits.context + 100][random.below(3)];
                let len = random.below(most);
                let kind = random.below(3) as u32;
                let differs = random.below(400);
                let prompt: Vec<u32> = (0..len).map(|i| if i < differs { kind } else { kind + 3 + id as u32 % 2 }).collect();
                let (name, most) = (names[random.below(2)].clone(), 1 + random.below(200));
                let longest = m.scheduler.longest();
                let result = m.scheduler.submit(Submission { id, prompt, most, name: name.clone() });
                match result {
                    Ok(()) => {
                        taken += 1;
                        m.known.insert(id, (name, len, most.min(longest - len)));
                    }
                    Err(Full::TooLong) => assert!(len == 0 || len + 1 > longest),
                    Err(Full::Waiting) => assert!(m.scheduler.counts()[1] >= limits.waiting),
                }
            }
            3 if random.below(3) == 0 => {
                let ids = m.scheduler.ids();
                if !ids.is_empty() {
                    let gone = ids[random.below(ids.len())];
                    assert!(m.scheduler.end(gone, random.below(2) == 0));
                    assert!(!m.scheduler.end(gone, true));
                    m.known.remove(&gone);
                    left += 1;
                }
                m.check();
            }
            _ => drop(m.step(depth)),
        }
    }
    for _ in 0..100_000 {
        if !m.step(depth) && m.flight.is_empty() {
            break;
        }
    }
    assert_eq!((m.scheduler.counts(), m.known.len(), m.served + left + m.ended), ([0, 0], 0, taken), "somebody was not served");
    assert_eq!(m.scheduler.page_counts().available, limits.pages, "a page is lost");
    m
}

#[test]
fn no_page_is_lost_and_none_is_written_by_two_rows() {
    // Much room, little, and hardly any; results at once, and one step later.
    for (n, (pages, reserve)) in [(200, Some(64)), (40, Some(16)), (17, Some(0)), (17, None)].into_iter().enumerate() {
        for depth in [0, 1] {
            let m = run(limits(pages, reserve), depth, 12_500, 0x9E37_79B9_7F4A_7C15 ^ (n * 2 + depth) as u64, false);
            assert!(m.served > 100 && m.steps[0] > 300 && m.steps[1] > 1000, "{} served in {:?}", m.served, m.steps);
            assert!(m.drafts.iter().all(|&n| n > 50), "{:?} drafts without and with room", m.drafts);
            let returned = m.scheduler.times_returned();
            assert_eq!(returned > 0, pages < 100 && reserve.is_some_and(|r| r < 64), "{returned} rows were put back");
        }
    }
}

#[test]
fn work_that_found_no_memory_is_done_later() {
    for (n, (pages, reserve)) in [(200, Some(64)), (17, Some(0)), (40, None)].into_iter().enumerate() {
        for depth in [0, 1] {
            let m = run(limits(pages, reserve), depth, 6_000, 0x1234_5678_9ABC_DEF1 ^ (n * 2 + depth) as u64, true);
            let returned = m.scheduler.times_returned();
            assert!(m.served > 50 && returned > 20, "{} served, {returned} put back", m.served);
        }
    }
}

#[test]
fn equal_prompts_are_read_by_one_row_for_all() {
    for reserve in [Some(0), None] {
        let mut m = Model::new(limits(100, reserve));
        let text: Vec<u32> = (0..300).collect();
        // The last has another name, and reads all itself.
        for (id, name) in [(1, "a"), (2, "a"), (3, "a"), (4, "b")] {
            m.known.insert(id, (name.into(), 300, 4));
            m.scheduler.submit(Submission { id, prompt: text.clone(), most: 4, name: name.into() }).unwrap();
        }
        while m.step(0) {}
        assert_eq!([1, 2, 3, 4].map(|id| m.found[&id]), [0, 256, 256, 0]);
        assert_eq!((m.served, m.scheduler.page_counts().available), (4, 100));
    }
}

#[test]
fn a_prefix_is_found_by_its_tokens_and_name_alone() {
    let mut m = Model::new(limits(100, Some(0)));
    let mut cached = |id: RowId, prompt: Vec<u32>, name: &str| {
        m.known.insert(id, (name.into(), prompt.len(), 1));
        m.scheduler.submit(Submission { id, prompt, most: 1, name: name.into() }).unwrap();
        while m.step(0) {}
        m.found[&id]
    };
    let text: Vec<u32> = (0..300).collect();
    assert_eq!(cached(1, text.clone(), "a"), 0);
    // 299 of 300 tokens need no reading: whole pages of them.
    assert_eq!(cached(2, text.clone(), "a"), 256);
    assert_eq!(cached(3, text.clone(), "b"), 0);
    let mut other = text.clone();
    other[100] += 1;
    assert_eq!(cached(4, other, "a"), 64);
    // The last token is read in any case.
    assert_eq!(cached(5, text[..128].to_vec(), "a"), 64);
    assert_eq!(m.scheduler.page_counts().available, 100);
}
