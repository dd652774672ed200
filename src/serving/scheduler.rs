//! Which rows read and write next, and which pages they have: a state machine without device, clock or input and output.

use super::pages::{PAGE, Pages, RowPage};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The number of a request.
pub(crate) type RowId = u64;

/// What there is room for.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Rows that are read or written at a time.
    pub rows: usize,
    /// Requests that wait at most.
    pub waiting: usize,
    /// Pages.
    pub pages: usize,
    /// Tokens of prompt and answer together.
    pub context: usize,
    /// The shapes in which prompts are read: rows and tokens of a row, the fewest tokens first; and how long such a step takes.
    pub shapes: Vec<([usize; 2], Duration)>,
    /// How long steps that read may take together between two that write.
    pub between_writes: Duration,
    /// Output tokens for which there must be room before a row begins; more pages are found as it goes on. `None`: for all.
    pub reserve: Option<usize>,
    /// A prefix that was read before counts in multiples of so many pages.
    pub prefix_pages: usize,
    /// Whether written tokens, not prompts alone, may be the prefix of later prompts.
    pub share_written: bool,
}

/// A request as the scheduler sees it.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub id: RowId,
    pub prompt: Vec<u32>,
    /// Tokens to write at most, one at least.
    pub most: usize,
    /// Whose prefixes it shares.
    pub name: Arc<str>,
}

/// Why a request is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// No request has so many tokens.
    TooLong,
    /// Too many wait.
    Waiting,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Read these parts of prompts, in this shape.
    Read([usize; 2], Vec<Chunk>),
    /// Write one token for each of these rows.
    Write(Vec<RowId>),
    /// What is under way must arrive first.
    Wait,
    /// Nothing.
    Idle,
}

/// A part of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub row: RowId,
    /// The first token's position.
    pub start: usize,
    pub len: usize,
    /// Whether the prompt ends here, so that a token is chosen.
    pub ends: bool,
}

/// Rows whose prompts are read next, in a shape that takes so long.
struct Part {
    shape: ([usize; 2], Duration),
    rows: Vec<RowId>,
}

/// A request that is known.
struct Row {
    /// The prompt and what was written.
    tokens: Vec<u32>,
    prompt: usize,
    /// Tokens of both at most.
    most: usize,
    /// Tokens whose keys and values are in the pages, or will be when the work that was given out is done.
    read: usize,
    /// Tokens that there will be when the work that was given out is done.
    planned: usize,
    /// Tokens to read before a token is chosen.
    target: usize,
    pages: Vec<RowPage>,
    name: Arc<str>,
    active: bool,
    /// Times that its pages were taken away.
    returned: usize,
    /// Tokens of the prompt that needed no reading.
    cached: usize,
}

/// The state of all requests. Rows are in the order of their numbers, which is that of their arrival.
pub(crate) struct Scheduler {
    limits: Limits,
    rows: BTreeMap<RowId, Row>,
    /// Rows without pages, in order.
    waiting: VecDeque<RowId>,
    pages: Pages,
    /// How long the steps take that were given out to read prompts since one that writes.
    since_write: Duration,
    /// Rows of whose prompts parts were given out to be read, and whose pages others may have when that is submitted.
    just_read: Vec<RowId>,
    /// Rows whose pages were taken away.
    returned: u64,
    /// Rows that may have pages at a time, as long as memory is short.
    held: Option<usize>,
}

fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE)
}

impl Scheduler {
    pub fn new(limits: Limits) -> Scheduler {
        let pages = Pages::new(limits.pages);
        Scheduler {
            limits,
            rows: BTreeMap::new(),
            waiting: VecDeque::new(),
            pages,
            since_write: Duration::ZERO,
            just_read: Vec::new(),
            returned: 0,
            held: None,
        }
    }

    /// Tokens of prompt and answer that one request may have.
    pub fn longest(&self) -> usize {
        self.limits.context.min(self.pages.total() * PAGE)
    }

    /// Takes a request; its number is larger than those before.
    pub fn submit(&mut self, s: Submission) -> Result<(), Full> {
        if s.prompt.is_empty() || s.prompt.len() + 1 > self.longest() {
            return Err(Full::TooLong);
        }
        if self.waiting.len() >= self.limits.waiting {
            return Err(Full::Waiting);
        }
        let prompt = s.prompt.len();
        let row = Row {
            most: prompt.saturating_add(s.most.max(1)).min(self.longest()),
            target: prompt,
            planned: prompt,
            tokens: s.prompt,
            prompt,
            read: 0,
            pages: Vec::new(),
            name: s.name,
            active: false,
            returned: 0,
            cached: 0,
        };
        self.rows.insert(s.id, row);
        self.waiting.push_back(s.id);
        Ok(())
    }

    /// A token was written. False where the row is not there any more.
    pub fn wrote(&mut self, id: RowId, token: u32) -> bool {
        let Some(row) = self.rows.get_mut(&id) else { return false };
        row.tokens.push(token);
        true
    }

    /// Finds room for up to `more` tokens behind the one that a row was given out to write, of pages that nobody needs; gives for how many there is.
    pub fn extend(&mut self, id: RowId, more: usize) -> usize {
        let Some(row) = self.rows.get_mut(&id) else { return 0 };
        let more = more.min(row.most.saturating_sub(row.planned));
        while row.pages.len() * PAGE < row.read + more {
            let Some(page) = self.pages.take() else { break };
            row.pages.push(page);
        }
        more.min((row.pages.len() * PAGE).saturating_sub(row.read))
    }

    /// One more token of a row was read and written than was given out, where there was room by [`Scheduler::extend`].
    pub fn advance(&mut self, id: RowId) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.read += 1;
            row.planned += 1;
        }
    }

    /// Whether a row has as many tokens as it may have.
    pub fn is_complete(&self, id: RowId) -> bool {
        self.rows.get(&id).is_some_and(|row| row.tokens.len() >= row.most)
    }

    /// The row ends, in whatever state it is; `sound` says whether its pages are of use to others. False where it is not there any more. Its pages may be given
    /// out again at once, since what writes into them is done before all that is given out later.
    pub fn end(&mut self, id: RowId, sound: bool) -> bool {
        let Some(mut row) = self.rows.remove(&id) else { return false };
        self.held = None;
        if !row.active {
            self.waiting.retain(|w| *w != id);
        } else if sound && self.limits.share_written {
            let full = row.read.min(row.tokens.len()) / PAGE;
            self.pages.share(&row.name, &row.tokens, &mut row.pages, full);
        }
        // Tails go first: a head without its tail is of use, a tail without its head is not.
        row.pages.into_iter().rev().for_each(|page| self.pages.give_back(page));
        true
    }

    /// What to do next. `under_way`: whether results of earlier work have not arrived.
    pub fn next(&mut self, under_way: bool) -> Work {
        for id in std::mem::take(&mut self.just_read) {
            let Some(row) = self.rows.get_mut(&id).filter(|r| r.active) else { continue };
            let full = row.read.min(row.shareable(self.limits.share_written)) / PAGE;
            self.pages.share(&row.name, &row.tokens, &mut row.pages, full);
        }
        self.admit();
        let writing = self.rows.values().any(Row::writes);
        if let Some(part) = self.part_to_read() {
            let (_, time) = part.shape;
            // Answers wait for one such step in any case, and for more of them as long as that is bearable.
            if !writing || self.since_write.is_zero() || self.since_write + time <= self.limits.between_writes {
                // A step counts, however short it is.
                self.since_write += time.max(Duration::from_nanos(1));
                return self.read(part);
            }
        }
        if writing {
            self.since_write = Duration::ZERO;
            return self.write(under_way);
        }
        if under_way { Work::Wait } else { Work::Idle }
    }

    /// Gives waiting rows their pages, in order, as long as there is room for the whole prompt. A row whose prompt begins as one that is being read waits
    /// until that much is read, so that it is read once; its place is kept.
    fn admit(&mut self) {
        let most = self.held.unwrap_or(self.limits.rows);
        let mut places = most.saturating_sub(self.rows.values().filter(|r| r.active).count());
        let mut at = 0;
        while let Some(&id) = self.waiting.get(at).filter(|_| places > 0) {
            places -= 1;
            match self.admit_row(id) {
                Admission::Begins => {
                    self.waiting.remove(at);
                }
                Admission::Follows => at += 1,
                Admission::NoRoom => return,
            }
        }
    }

    /// Gives a waiting row its pages.
    fn admit_row(&mut self, id: RowId) -> Admission {
        let others = self.read_alike(id);
        let Some(row) = self.rows.get_mut(&id) else { return Admission::NoRoom };
        // The last token is read in any case: its logits are needed.
        let most = (row.target - 1) / PAGE;
        let found = self.pages.find(&row.name, &row.tokens, most, self.limits.prefix_pages);
        let all = self.limits.reserve.is_none() || row.returned > 1;
        let worst = pages_of(row.most);
        let reserved = pages_of(row.tokens.len() + self.limits.reserve.unwrap_or(0)).min(worst);
        let (own, room) = if all { (worst, worst) } else { (pages_of(row.target), reserved.max(pages_of(row.target))) };
        let follows = others > found.len();
        if follows || self.pages.available() + found.len() < room {
            found.into_iter().rev().for_each(|page| self.pages.give_back(page));
            return if follows { Admission::Follows } else { Admission::NoRoom };
        }
        row.read = found.len() * PAGE;
        if row.returned == 0 {
            row.cached = row.read;
        }
        row.pages = found;
        while row.pages.len() < own {
            let Some(page) = self.pages.take() else { break };
            row.pages.push(page);
        }
        row.active = true;
        Admission::Begins
    }

    /// Pages at the beginning of a row's prompt that a row which is being read will share.
    fn read_alike(&self, id: RowId) -> usize {
        let Some(row) = self.rows.get(&id) else { return 0 };
        let alike = |other: &Row| {
            let most = ((row.target - 1) / PAGE).min(other.shareable(self.limits.share_written) / PAGE);
            row.tokens.chunks_exact(PAGE).zip(other.tokens.chunks_exact(PAGE)).take(most).take_while(|(a, b)| a == b).count()
        };
        let reading = self.rows.values().filter(|other| other.active && other.read < other.target && other.name == row.name);
        let multiple = self.limits.prefix_pages.max(1);
        reading.map(alike).max().unwrap_or(0) / multiple * multiple
    }

    /// Rows that read in one shape: the oldest decides how many tokens, others join as long as at most half of the shape is padding.
    fn part_to_read(&self) -> Option<Part> {
        let left = |r: &Row| r.target.saturating_sub(r.read);
        let unread: Vec<(RowId, usize)> = self.rows.iter().filter(|(_, r)| r.active && left(r) > 0).map(|(id, r)| (*id, left(r))).collect();
        let &(_, first) = unread.first()?;
        let shapes = &self.limits.shapes;
        let longest = shapes.iter().map(|(s, _)| s[1]).max().unwrap_or(1);
        let width = shapes.iter().map(|(s, _)| s[1]).filter(|&w| w >= first.min(longest)).min().unwrap_or(longest);
        let mut of_width: Vec<_> = shapes.iter().filter(|(s, _)| s[1] == width).copied().collect();
        of_width.sort_unstable();
        let &([most, _], _) = of_width.last()?;
        // A shape that is there in one height takes as long with few rows as with many.
        let fits = |&(n, (_, left)): &(usize, (RowId, usize))| n == 0 || of_width.len() == 1 || 2 * left.min(width) >= width;
        let rows: Vec<RowId> = unread.into_iter().enumerate().filter(fits).map(|(_, (id, _))| id).take(most).collect();
        let shape = of_width.into_iter().find(|(s, _)| s[0] >= rows.len())?;
        Some(Part { shape, rows })
    }

    /// Gives out a part to read. Where rows of the shape are left, they read the prompts' next parts: a step writes the keys of all its rows before any of
    /// them attends to them.
    fn read(&mut self, Part { shape: ([height, width], _), rows }: Part) -> Work {
        let mut chunks = Vec::new();
        // Each prompt has one part before the oldest has more.
        let first = rows.iter().map(|&id| (id, 1));
        let more = rows.iter().map(|&id| (id, usize::MAX));
        for (id, most) in first.chain(more) {
            let Some(row) = self.rows.get_mut(&id) else { continue };
            let parts = (row.target - row.read).div_ceil(width).min(most).min(height - chunks.len());
            for _ in 0..parts {
                let left = row.target - row.read;
                let len = left.min(width);
                chunks.push(Chunk { row: id, start: row.read, len, ends: len == left });
                row.read += len;
                if len == left {
                    row.planned = row.tokens.len() + 1;
                }
            }
        }
        self.just_read.extend(rows);
        Work::Read([height, width], chunks)
    }

    /// A token for each row that has one to go on from. Where pages run out, the newest row waits again; the others go on.
    fn write(&mut self, under_way: bool) -> Work {
        let mut ready = Vec::new();
        for id in self.writing() {
            while let Some(row) = self.rows.get_mut(&id).filter(|r| r.active) {
                if row.read < row.pages.len() * PAGE {
                    ready.push(id);
                    break;
                }
                if let Some(page) = self.pages.take() {
                    row.pages.push(page);
                    continue;
                }
                // What a row wrote last must be known before it can be read again.
                if under_way {
                    return Work::Wait;
                }
                let newest = self.rows.iter().rev().find(|(_, r)| r.active).map(|(id, _)| *id);
                newest.into_iter().for_each(|n| self.put_back(n));
            }
        }
        ready.retain(|id| self.rows.get(id).is_some_and(|r| r.active));
        for id in &ready {
            if let Some(row) = self.rows.get_mut(id) {
                row.read += 1;
                row.planned += 1;
            }
        }
        if ready.is_empty() { Work::Wait } else { Work::Write(ready) }
    }

    /// Work that was given out was not done, for want of memory: it will be given out again. What was under way must have arrived.
    pub fn undo(&mut self, work: &Work) {
        match work {
            Work::Read(_, chunks) => {
                // Of a prompt's parts the first was given out first.
                for chunk in chunks.iter().rev() {
                    self.just_read.retain(|id| *id != chunk.row);
                    let Some(row) = self.rows.get_mut(&chunk.row) else { continue };
                    (row.read, row.planned) = (chunk.start, row.tokens.len());
                }
            }
            Work::Write(rows) => {
                for id in rows {
                    let Some(row) = self.rows.get_mut(id) else { continue };
                    (row.read, row.planned) = (row.tokens.len() - 1, row.tokens.len());
                }
            }
            Work::Wait | Work::Idle => {}
        }
    }

    /// Puts the newest row back, and gives out places for as many as are left until one of them ends.
    pub fn hold_back(&mut self) -> HeldBack {
        let active: Vec<RowId> = self.rows.iter().filter(|(_, r)| r.active).map(|(id, _)| *id).collect();
        let Some(&newest) = active.last() else { return HeldBack::Nobody };
        if active.len() == 1 || !self.can_be_read_again(newest) {
            return HeldBack::Ends(newest);
        }
        self.put_back(newest);
        self.held = Some(active.len() - 1);
        HeldBack::Waits
    }

    /// Whether a row may be put back: where answers have the same bits whatever happens, what was written is not read instead.
    pub fn can_be_read_again(&self, id: RowId) -> bool {
        self.limits.reserve.is_some() || self.rows.get(&id).is_none_or(|r| r.tokens.len() == r.prompt)
    }

    /// Takes a row's pages away; it will be read again, as far as it was written.
    pub fn put_back(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(&id).filter(|r| r.active) else { return };
        let pages = std::mem::take(&mut row.pages);
        row.active = false;
        row.returned += 1;
        (row.read, row.target, row.planned) = (0, row.tokens.len(), row.tokens.len());
        pages.into_iter().rev().for_each(|page| self.pages.give_back(page));
        let at = self.waiting.partition_point(|w| *w < id);
        self.waiting.insert(at, id);
        self.returned += 1;
    }

    /// The pages of a row, in order.
    pub fn pages(&self, id: RowId) -> impl Iterator<Item = u32> {
        self.rows.get(&id).into_iter().flat_map(|r| r.pages.iter().map(|p| p.page))
    }
    /// The row's token at a position, if it is known.
    pub fn token(&self, id: RowId, position: usize) -> Option<u32> {
        self.rows.get(&id)?.tokens.get(position).copied()
    }
    /// The tokens of a row that are known, prompt and answer.
    pub fn tokens(&self, id: RowId) -> &[u32] {
        self.rows.get(&id).map_or(&[], |row| &row.tokens)
    }
    /// Tokens of a row whose keys and values are in its pages, with the work that was given out.
    pub fn read_tokens(&self, id: RowId) -> usize {
        self.rows.get(&id).map_or(0, |r| r.read)
    }
    /// Tokens of a row's prompt that needed no reading.
    pub fn cached_tokens(&self, id: RowId) -> usize {
        self.rows.get(&id).map_or(0, |r| r.cached)
    }
    /// Rows that have pages, and rows that wait.
    pub fn counts(&self) -> [usize; 2] {
        [self.rows.len() - self.waiting.len(), self.waiting.len()]
    }
    /// Rows whose pages were taken away.
    pub fn times_returned(&self) -> u64 {
        self.returned
    }
    /// Pages that rows have or the tree, of all that there are.
    pub fn page_counts(&self) -> PageCounts {
        PageCounts { total: self.pages.total(), available: self.pages.available(), cached: self.pages.cached() }
    }
    /// The rows that a step which writes would have.
    pub fn writing(&self) -> Vec<RowId> {
        self.rows.iter().filter(|(_, r)| r.writes()).map(|(id, _)| *id).collect()
    }
    /// All requests that are known.
    pub fn ids(&self) -> Vec<RowId> {
        self.rows.keys().copied().collect()
    }
}

/// How many pages there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageCounts {
    pub total: usize,
    pub available: usize,
    pub cached: usize,
}

/// What becomes of the newest row where memory is short.
pub(crate) enum HeldBack {
    /// It waits again.
    Waits,
    /// It must end, since it cannot be read again, or no other could go on instead.
    Ends(RowId),
    /// There is none.
    Nobody,
}

/// What becomes of a waiting row.
enum Admission {
    /// It has its pages.
    Begins,
    /// Another row is reading what it begins with.
    Follows,
    /// There are not enough pages.
    NoRoom,
}

impl Row {
    /// Tokens whose pages other rows may have when they are read.
    fn shareable(&self, written: bool) -> usize {
        if written { self.target } else { self.prompt }
    }

    /// Whether the next token can be written: all before it are read, but the last, which may be under way.
    fn writes(&self) -> bool {
        self.active && self.read >= self.target && self.read < self.planned && self.planned < self.most
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
