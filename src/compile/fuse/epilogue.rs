//! Rule 2 of fusion: which maps a kernel computes where it stores its result.

use super::super::expr::{Expr, append};
use super::{Fuser, buffers, compose_order};
use crate::plan::{Buf, Source, Store, Work};
use crate::scalar::Program;

impl Fuser<'_, '_> {
    /// Whether the value of map `i` can be what a kernel stores in place of its own result, without more bytes.
    pub(super) fn is_epilogue(&self, i: u32, e: &Expr) -> bool {
        let wider = |step: usize, own: usize| self.node(i).meta(0).dtype.bytes(1) > self.list[step].stores[own].target.dtype.bytes(1);
        self.host_of(e, i).is_some_and(|(step, own)| !wider(step, own))
    }

    /// The step and the store of it that would take the expression of map `i` as its epilogue: that of the latest kernel it reads, if nothing else
    /// reads that one's result.
    pub(super) fn host_of(&self, e: &Expr, i: u32) -> Option<(usize, usize)> {
        // What computes the map again for itself still needs the kernel's own result, also where that is not emitted yet.
        if !self.fuse || self.inlined[i as usize] {
            return None;
        }
        let defs = |s: &Source| match s.buf {
            Buf::Slot(v) => self.values[v as usize].def,
            _ => None,
        };
        let step = e.sources.iter().filter_map(defs).max()?;
        let latest: Vec<&Source> = e.sources.iter().filter(|s| defs(s) == Some(step)).collect();
        let (op, out) = latest.iter().find_map(|s| match s.buf {
            Buf::Slot(v) => self.values[v as usize].of,
            _ => None,
        })?;
        let v = self.at[op as usize][out as usize].expect("a source is in memory");
        let slot = Buf::Slot(v as u16);
        let plain = |s: &Source| s.buf != slot || (s.offset.is_none() && s.layout.offset == 0 && s.layout.is_contiguous());
        let whole = self.node(op).meta(out).shape.count() == e.shape.count();
        if self.step_of[op as usize] != Some(step)
            || self.node(op).keep
            || !matches!(self.list[step].work, Work::Kernel(_))
            || !whole
            || !latest.iter().all(|s| s.buf == slot)
            || !e.sources.iter().all(plain)
            || !self.only_reader(op, i)
        {
            return None;
        }
        // Of several results the others are read by nobody.
        let own = self.list[step].stores.iter().position(|s| s.target.buf == slot)?;
        if !self.list[step].stores[own].program.is_value() {
            return None;
        }
        // What computes the map again for itself still needs the kernel's own result.
        let reads = |s: &Source| s.buf == slot;
        let later = self.list[step + 1..]
            .iter()
            .any(|s| s.loads.iter().flat_map(|l| &l.sources).chain(s.stores.iter().flat_map(|t| &t.sources)).any(reads));
        if later || self.exprs[i as usize + 1..].iter().flatten().any(|e| e.sources.iter().any(reads)) {
            return None;
        }
        let loads = self.list[step].loads.iter().flat_map(|l| &l.sources);
        let bound: Vec<Source> = loads.chain(e.sources.iter().filter(|s| !reads(s))).cloned().collect();
        (buffers(&bound) + self.list[step].stores.len() <= self.sources + 2).then_some((step, own))
    }

    /// Rule 2: puts the expression of map `i` into the store of the latest kernel it reads. False where that is not possible.
    pub(super) fn host(&mut self, e: &Expr, target: &Source, i: u32) -> bool {
        let Some((step, own)) = self.host_of(e, i) else { return false };
        // A target that another step has begun to fill must not be written before that.
        if let Buf::Slot(t) = target.buf {
            if self.values[t as usize].def.is_some_and(|d| d >= step) {
                return false;
            }
        }
        let old = &self.list[step].stores[own];
        let slot = old.target.buf;
        // The kernel stores its elements in its own order: see the expression through it.
        let order = old.target.layout;
        let mut others = Vec::new();
        let mut map = Vec::new();
        for s in &e.sources {
            if s.buf == slot {
                map.push(u16::MAX);
                continue;
            }
            let Some(layout) = compose_order(&order, &e.shape, &s.layout) else { return false };
            map.push(others.len() as u16);
            others.push(Source { layout, ..s.clone() });
        }
        let Some(layout) = compose_order(&order, &e.shape, &target.layout) else { return false };
        let mut program = Program::default();
        append(&mut program, &e.program, &map);
        self.define(target, step);
        let s = &mut self.list[step];
        s.stores[own] = Store { shape: s.stores[own].shape, program, sources: others, target: Source { layout, ..target.clone() } };
        true
    }

    /// Whether the expression of map `i` would rather go into the store of a kernel that it reads.
    pub(super) fn hostable(&self, i: u32, e: &Expr) -> bool {
        e.sources.iter().any(|s| match s.buf {
            Buf::Slot(v) => self.values[v as usize].of.is_some_and(|(op, out)| {
                self.step_of[op as usize].is_some()
                    && (self.users[op as usize].len() == 1 || self.only_reader(op, i))
                    && !self.node(op).keep
                    && e.sources.iter().all(|t| t.buf != s.buf || (t.offset.is_none() && t.layout.offset == 0 && t.layout.is_contiguous()))
                    && self.node(op).meta(out).shape.count() == e.shape.count()
            }),
            _ => false,
        })
    }
}
