//! Which page belongs to which tree, also when the page that said so is lost.

use super::image::Image;
use super::page::{Cell, Kind, Page};
use super::record::Record;
use std::collections::{BTreeMap, HashSet};

/// Trees are not deeper than this: every level multiplies the pages by four at least.
const DEPTH_MAX: usize = 40;

/// A part of a tree that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The page that is lost.
    pub page: u32,
    /// The rowids that are lost are above this ...
    pub above: Option<i64>,
    /// ... and not above this. Both are unknown in a tree without rowids.
    pub up_to: Option<i64>,
    /// How far below the root it is.
    depth: usize,
}

/// A page of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The page.
    pub page: u32,
    above: Option<i64>,
    up_to: Option<i64>,
}

/// A tree as far as it can be walked.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The root.
    pub root: u32,
    /// The pages that hold its rows, in order.
    pub rows: Vec<Rows>,
    /// What is missing.
    pub holes: Vec<Hole>,
    /// Cells that cannot be read.
    pub bad_cells: u64,
    /// Pages that were found without their parents and are taken for its own.
    pub adopted: u64,
    /// The depth of its leaves, where one was reached.
    leaves_at: Option<usize>,
    /// Children that a damaged page names: a hint, no more.
    hints: Vec<u32>,
}

impl Tree {
    /// Say whether nothing of it is missing.
    pub fn is_whole(&self) -> bool {
        self.holes.is_empty() && self.bad_cells == 0 && self.adopted == 0
    }

    /// Return the holes that pages without parents can have fallen out of: not those of lost leaves.
    fn open_holes(&self) -> impl Iterator<Item = &Hole> {
        self.holes.iter().filter(|hole| self.leaves_at.is_none_or(|leaves| hole.depth < leaves))
    }
}

/// A row as it is stored.
pub struct Row<'a> {
    /// The page its cell is on.
    pub page: u32,
    /// Its rowid; 0 in a tree without.
    pub rowid: i64,
    /// Its fields, in stored order.
    pub record: Record<'a>,
}

/// Which pages are taken.
pub struct Forest<'a> {
    image: &'a Image,
    taken: Vec<bool>,
    free: HashSet<u32>,
    /// Whether the list of free pages is whole.
    pub free_list_whole: bool,
}

impl<'a> Forest<'a> {
    /// Begin with the list of free pages.
    pub fn new(image: &'a Image) -> Self {
        let mut forest =
            Self { image, taken: vec![false; image.pages as usize + 1], free: HashSet::new(), free_list_whole: false };
        forest.free_list_whole = forest.read_free_list() && !image.guessed;
        forest
    }

    fn read_free_list(&mut self) -> bool {
        let mut trunk = self.image.header.free_first;
        while trunk != 0 {
            let Some(page) = self.image.page(trunk).filter(|_| trunk > 1) else { return false };
            let word = |at: usize| u32::from_be_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
            let count = word(4) as usize;
            if count > self.image.usable() / 4 - 2 || !self.free.insert(trunk) {
                return false;
            }
            let leaves: Vec<u32> = (0..count).map(|leaf| word(8 + 4 * leaf)).collect();
            if leaves.iter().any(|leaf| !(2..=self.image.pages).contains(leaf)) {
                self.free.remove(&trunk);
                return false;
            }
            self.free.extend(leaves);
            trunk = word(0);
        }
        self.free.len() == self.image.header.free_count as usize
    }

    /// Walk a tree from its root and take its pages. `is_table`: its rows have rowids.
    pub fn walk(&mut self, root: u32, is_table: bool) -> Tree {
        let mut tree = Tree { root, ..Tree::default() };
        self.walk_from(&mut tree, root, is_table);
        tree
    }

    fn walk_from(&mut self, tree: &mut Tree, root: u32, is_table: bool) {
        let mut stack = vec![(Rows { page: root, above: None, up_to: None }, 0_usize)];
        while let Some((at, depth)) = stack.pop() {
            let hole = Hole { page: at.page, above: at.above, up_to: at.up_to, depth };
            let page = if self.is_taken(at.page) || depth > DEPTH_MAX { None } else { Page::read(self.image, at.page) };
            let Some(page) = page.filter(|page| page.kind.is_table() == is_table) else {
                tree.holes.push(hole);
                continue;
            };
            if page.kind.is_interior() {
                match self.children(&page, at, depth) {
                    Ok(children) => {
                        self.taken[at.page as usize] = true;
                        if page.kind == Kind::IndexInterior {
                            tree.rows.push(at);
                            tree.bad_cells += self.take_chains(&page, at);
                        }
                        stack.extend(children.into_iter().rev());
                    }
                    Err(hints) => {
                        tree.holes.push(hole);
                        tree.hints.extend(hints);
                        if page.kind == Kind::IndexInterior && page.sound {
                            tree.rows.push(at);
                        }
                    }
                }
                continue;
            }
            // A leaf none of whose rows fits is not the one that was meant; an empty one is only right as a root.
            let bad = self.take_chains(&page, at);
            let good = page.len() as u64 - bad;
            if (good == 0 && !(depth == 0 && page.is_empty() && page.sound)) || (!page.sound && bad > good) {
                tree.holes.push(hole);
                continue;
            }
            self.taken[at.page as usize] = true;
            tree.leaves_at = tree.leaves_at.or(Some(depth));
            tree.bad_cells += bad + u64::from(!page.sound);
            tree.rows.push(at);
        }
    }

    /// Return the children of a page that is in order, or those it seems to name.
    fn children(&self, page: &Page, at: Rows, depth: usize) -> Result<Vec<(Rows, usize)>, Vec<u32>> {
        let mut children = Vec::with_capacity(page.len() + 1);
        let mut seen = HashSet::from([page.number]);
        let mut sound = page.sound;
        let mut above = at.above;
        for index in 0..page.len() {
            let Some(cell) = page.cell(index, self.image) else {
                sound = false;
                continue;
            };
            let up_to = (page.kind == Kind::TableInterior).then_some(cell.rowid);
            let ordered = up_to
                .is_none_or(|key| above.is_none_or(|above| key > above) && at.up_to.is_none_or(|last| key <= last));
            sound &= ordered && seen.insert(cell.child);
            children.push((Rows { page: cell.child, above, up_to }, depth + 1));
            above = up_to;
        }
        sound &= (2..=self.image.pages).contains(&page.right) && seen.insert(page.right);
        children.push((Rows { page: page.right, above, up_to: at.up_to }, depth + 1));
        if sound {
            return Ok(children);
        }
        Err(children.into_iter().map(|(child, _)| child.page).filter(|page| *page > 1).collect())
    }

    /// Take the overflow pages of a page's rows and return how many cells cannot be read.
    fn take_chains(&mut self, page: &Page, at: Rows) -> u64 {
        let mut good = 0;
        let mut chains = Vec::new();
        each_row(self.image, page, at, |chain| chains.push(chain), |_| good += 1);
        for chain in chains {
            self.taken[chain as usize] = true;
        }
        page.len() as u64 - good
    }

    /// Hand each row of a page of a tree to `visit`, in order.
    pub fn rows(&self, rows: Rows, visit: impl FnMut(Row<'_>)) {
        if let Some(page) = Page::read(self.image, rows.page) {
            each_row(self.image, &page, rows, |_| (), visit);
        }
    }

    /// Take each leaf that nothing has led to and all of whose rows `read` accepts; return what it made of them.
    pub fn take_leaves<T>(&mut self, read: impl Fn(&Row<'_>) -> Option<T>) -> Vec<Vec<T>> {
        let mut found = Vec::new();
        for number in 2..=self.image.pages {
            if self.is_taken(number) || self.free.contains(&number) || self.image.is_reserved(number) {
                continue;
            }
            let page = Page::read(self.image, number).filter(|page| page.kind == Kind::TableLeaf && !page.is_empty());
            let Some(page) = page else { continue };
            let mut rows = Vec::new();
            each_row(
                self.image,
                &page,
                Rows { page: number, above: None, up_to: None },
                |_| (),
                |row| rows.extend(read(&row)),
            );
            if rows.len() == page.len() {
                self.taken[number as usize] = true;
                found.push(rows);
            }
        }
        found
    }

    /// Say whether the root of a tree looks like that of a table with rowids.
    pub fn is_table_at(&self, root: u32) -> bool {
        Page::read(self.image, root).is_none_or(|page| page.kind.is_table())
    }

    fn is_taken(&self, page: u32) -> bool {
        self.taken.get(page as usize).copied().unwrap_or(true)
    }

    /// Return the trees of pages that nothing leads to, each under the highest of its pages that is left.
    ///
    /// `deleted`: also of pages that are free, which hold rows that were deleted.
    pub fn orphans(&mut self, is_table: bool, deleted: bool) -> Vec<Tree> {
        let mut loose: BTreeMap<u32, Page> = BTreeMap::new();
        for number in 2..=self.image.pages {
            if self.is_taken(number) || self.image.is_reserved(number) || (!deleted && self.free.contains(&number)) {
                continue;
            }
            if let Some(page) = Page::read(self.image, number).filter(|page| page.kind.is_table() == is_table)
                && !page.is_empty()
            {
                loose.insert(number, page);
            }
        }
        let anywhere = |page| Rows { page, above: None, up_to: None };
        let children: HashSet<u32> = loose
            .values()
            .filter(|page| page.kind.is_interior())
            .filter_map(|page| self.children(page, anywhere(page.number), 0).ok())
            .flatten()
            .map(|(child, _)| child.page)
            .collect();
        let mut trees = Vec::new();
        // Those that are nobody's child first; then what a circle or a refusal has left over.
        for only_tops in [true, false] {
            for page in loose.values() {
                if self.is_taken(page.number) || (only_tops && children.contains(&page.number)) {
                    continue;
                }
                let tree = self.walk(page.number, is_table);
                if !tree.rows.is_empty() {
                    trees.push(tree);
                }
            }
        }
        trees
    }
}

fn each_row(image: &Image, page: &Page, within: Rows, mut chained: impl FnMut(u32), mut visit: impl FnMut(Row<'_>)) {
    let mut last = within.above;
    for index in 0..page.len() {
        let Some(Cell { rowid, payload: Some(payload), .. }) = page.cell(index, image) else { continue };
        let ordered = last.is_none_or(|last| rowid > last) && within.up_to.is_none_or(|up_to| rowid <= up_to);
        if page.kind == Kind::TableLeaf && !ordered {
            continue;
        }
        let mut chain = Vec::new();
        let Some(bytes) = page.payload(payload, image, |page| chain.push(page)) else { continue };
        let Some(record) = Record::decode(&bytes) else { continue };
        chain.into_iter().for_each(&mut chained);
        if page.kind == Kind::TableLeaf {
            last = Some(rowid);
        }
        visit(Row { page: page.number, rowid, record });
    }
}

/// Find the one tree among `trees` that a tree without a parent can have fallen out of.
///
/// `fits` says of a candidate, by index, how well the rows agree with its columns: `None` not at all, or a grade,
/// the higher the better. Of several candidates that agree equally, none is taken.
pub fn home_of(
    orphan: &Tree,
    span: Option<(i64, i64)>,
    trees: &[&Tree],
    mut fits: impl FnMut(usize) -> Option<u32>,
) -> Option<usize> {
    let hinted: Vec<usize> = (0..trees.len()).filter(|at| trees[*at].hints.contains(&orphan.root)).collect();
    if let [only] = hinted[..]
        && fits(only).is_some()
    {
        return Some(only);
    }
    let mut best: Option<(u32, usize)> = None;
    let mut alone = false;
    for (at, tree) in trees.iter().enumerate() {
        let has_room = tree.open_holes().any(|hole| {
            span.is_none_or(|(first, last)| {
                hole.above.is_none_or(|above| first > above) && hole.up_to.is_none_or(|up_to| last <= up_to)
            })
        });
        let Some(grade) = has_room.then(|| fits(at)).flatten() else { continue };
        match best {
            Some((other, _)) if other > grade => {}
            Some((other, _)) if other == grade => alone = false,
            _ => (best, alone) = (Some((grade, at)), true),
        }
    }
    best.filter(|_| alone).map(|(_, at)| at)
}
