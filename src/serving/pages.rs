//! Which pages are free, and which hold keys and values that later prompts may begin with: a tree over full pages, by their tokens.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Positions of a page.
pub(crate) use crate::models::paged::PAGE;

/// A page of the tree.
pub(crate) type NodeId = usize;

/// A page of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowPage {
    /// Its number.
    pub page: u32,
    /// Its place in the tree, which then owns it: other rows may read it, and nobody writes it.
    pub node: Option<NodeId>,
}

/// A full page whose tokens, behind those of its parents, were read already.
struct Node {
    page: u32,
    /// Whose child it is, by which tokens.
    key: (Parent, Box<[u32]>),
    children: usize,
    /// Rows that have it.
    rows: usize,
    /// When a row last had it.
    used: u64,
}

/// The page before, or the root of a name's tree.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Parent {
    Node(NodeId),
    Root(Arc<str>),
}

/// All pages: each is free, a row's own, or in the tree.
pub(crate) struct Pages {
    free: Vec<u32>,
    total: usize,
    nodes: Vec<Option<Node>>,
    unused: Vec<NodeId>,
    children: HashMap<(Parent, Box<[u32]>), NodeId>,
    /// Leaves that no row has, the least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Pages of the tree that no row has.
    idle: usize,
    clock: u64,
}

impl Pages {
    /// Pages `1..=count`, all free. Page 0 is nobody's.
    pub fn new(count: usize) -> Pages {
        Pages {
            free: (1..=count as u32).rev().collect(),
            total: count,
            nodes: Vec::new(),
            unused: Vec::new(),
            children: HashMap::new(),
            leaves: BTreeSet::new(),
            idle: 0,
            clock: 0,
        }
    }

    /// All pages that there are.
    pub fn total(&self) -> usize {
        self.total
    }
    /// Pages that can be had: free ones, and those of the tree that no row has.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle
    }
    /// Pages of the tree.
    pub fn cached(&self) -> usize {
        self.nodes.len() - self.unused.len()
    }

    /// A page for a row's own tokens; one that only the tree has, if need be.
    pub fn take(&mut self) -> Option<RowPage> {
        let page = self.free.pop().or_else(|| self.evict())?;
        Some(RowPage { page, node: None })
    }

    /// Takes the least recently used leaf out of the tree.
    fn evict(&mut self) -> Option<u32> {
        let (_, id) = self.leaves.pop_first()?;
        let node = self.nodes[id].take()?;
        self.unused.push(id);
        self.idle -= 1;
        self.children.remove(&node.key);
        if let Parent::Node(parent) = node.key.0 {
            if let Some(p) = &mut self.nodes[parent] {
                p.children -= 1;
                if p.children == 0 && p.rows == 0 {
                    self.leaves.insert((p.used, parent));
                }
            }
        }
        Some(node.page)
    }

    /// A row's page is not needed by it any more.
    pub fn give_back(&mut self, page: RowPage) {
        let Some(id) = page.node else { return self.free.push(page.page) };
        self.clock += 1;
        let Some(node) = &mut self.nodes[id] else { return };
        node.rows -= 1;
        node.used = self.clock;
        if node.rows == 0 {
            self.idle += 1;
            if node.children == 0 {
                self.leaves.insert((node.used, id));
            }
        }
    }

    /// Counts one more row that has a page of the tree.
    fn hold(&mut self, id: NodeId) -> Option<RowPage> {
        let node = self.nodes[id].as_mut()?;
        if node.rows == 0 {
            self.idle -= 1;
            self.leaves.remove(&(node.used, id));
        }
        node.rows += 1;
        Some(RowPage { page: node.page, node: Some(id) })
    }

    /// Pages of the tree named `name` that hold the first of these tokens, at most `most`, in multiples of `multiple`: they are the row's from now on.
    pub fn find(&mut self, name: &Arc<str>, tokens: &[u32], most: usize, multiple: usize) -> Vec<RowPage> {
        let mut path = Vec::new();
        let mut parent = Parent::Root(name.clone());
        for piece in tokens.chunks_exact(PAGE).take(most) {
            let Some(&id) = self.children.get(&(parent, piece.into())) else { break };
            path.push(id);
            parent = Parent::Node(id);
        }
        path.truncate(path.len() / multiple.max(1) * multiple.max(1));
        path.into_iter().filter_map(|id| self.hold(id)).collect()
    }

    /// Lets other rows have the first `full` pages of a row, which hold these tokens. Where the tree has such a page, the row has that one instead of its
    /// own from now on.
    pub fn share(&mut self, name: &Arc<str>, tokens: &[u32], pages: &mut [RowPage], full: usize) {
        let mut parent = Parent::Root(name.clone());
        for (own, piece) in pages.iter_mut().zip(tokens.chunks_exact(PAGE)).take(full) {
            let id = match own.node {
                Some(id) => id,
                None => {
                    let key = (parent.clone(), Box::from(piece));
                    let known = self.children.get(&key).copied();
                    let id = known.unwrap_or_else(|| self.insert(key, own.page));
                    if known.is_some() {
                        self.free.push(own.page);
                        if let Some(held) = self.hold(id) {
                            *own = held;
                        }
                    } else {
                        own.node = Some(id);
                    }
                    id
                }
            };
            parent = Parent::Node(id);
        }
    }

    /// A row's own page becomes one of the tree, which this row has.
    fn insert(&mut self, key: (Parent, Box<[u32]>), page: u32) -> NodeId {
        if let Parent::Node(parent) = key.0 {
            if let Some(p) = &mut self.nodes[parent] {
                p.children += 1;
                self.leaves.remove(&(p.used, parent));
            }
        }
        let node = Node { page, key: key.clone(), children: 0, rows: 1, used: 0 };
        let id = match self.unused.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        self.children.insert(key, id);
        id
    }

    /// For tests: fails unless each page is in one place, given the pages that rows have.
    #[cfg(test)]
    pub fn check(&self, rows: &[Vec<RowPage>]) {
        let mut owner = vec![0usize; self.total + 1];
        let mut holders: HashMap<NodeId, usize> = HashMap::new();
        self.free.iter().for_each(|&p| owner[p as usize] += 1);
        self.nodes.iter().flatten().for_each(|n| owner[n.page as usize] += 1);
        for page in rows.iter().flatten() {
            match page.node {
                None => owner[page.page as usize] += 1,
                Some(id) => {
                    *holders.entry(id).or_default() += 1;
                    assert_eq!(self.nodes[id].as_ref().expect("a row's page is there").page, page.page);
                }
            }
        }
        assert!(owner[1..].iter().all(|&n| n == 1) && owner[0] == 0, "a page is lost or in two places: {owner:?}");
        let mut idle = 0;
        for (id, node) in self.nodes.iter().enumerate().filter_map(|(id, n)| Some((id, n.as_ref()?))) {
            assert_eq!(node.rows, holders.get(&id).copied().unwrap_or(0), "rows of page {}", node.page);
            let children = self.children.keys().filter(|(p, _)| *p == Parent::Node(id)).count();
            assert_eq!(node.children, children);
            assert_eq!(self.leaves.contains(&(node.used, id)), node.rows == 0 && children == 0);
            idle += usize::from(node.rows == 0);
        }
        assert_eq!((self.idle, self.children.len()), (idle, self.cached()));
    }
}
