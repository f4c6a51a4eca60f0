//! The schema, from the tree of page 1 or from what is left of it.

use super::forest::{Forest, Row, Tree};
use super::image::Encoding;
use crate::sqlite::ValueRef;
use std::collections::HashSet;

/// A row of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `table`, `index`, `view` or `trigger`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The table it belongs to.
    pub table: String,
    /// The root of its tree; 0 for a view, a trigger or a virtual table.
    pub root: u32,
    /// The statement that makes it; none for an index that its table brings along.
    pub sql: Option<String>,
}

impl Entry {
    /// Read a row as an entry; `None` if it cannot be one.
    fn from_row(row: &Row<'_>, encoding: Encoding) -> Option<Self> {
        let [kind, name, table, root, sql] = &row.record.fields[..] else { return None };
        let text = |value: &ValueRef<'_>| match value {
            ValueRef::Text(bytes) => Some(encoding.decode(bytes)),
            _ => None,
        };
        let entry = Self {
            kind: text(kind)?,
            name: text(name)?,
            table: text(table)?,
            root: match root {
                ValueRef::Integer(root) => u32::try_from(*root).ok()?,
                ValueRef::Null => 0,
                _ => return None,
            },
            sql: match sql {
                ValueRef::Null => None,
                other => Some(text(other)?),
            },
        };
        let known = matches!(&*entry.kind, "table" | "index" | "view" | "trigger");
        let made = entry.sql.as_deref().map_or(entry.kind == "index", starts_with_create);
        (known && made && !entry.name.contains('\0')).then_some(entry)
    }

    /// Say whether it is a table made by an extension, which has no tree of its own.
    pub fn is_virtual(&self) -> bool {
        self.kind == "table" && self.root == 0
    }
}

fn starts_with_create(sql: &str) -> bool {
    sql.trim_start().get(..6).is_some_and(|word| word.eq_ignore_ascii_case("CREATE"))
}

/// Read the schema, and its tree. What page 1 does not lead to is looked for among the pages nothing leads to.
pub fn read(forest: &mut Forest<'_>, encoding: Encoding) -> (Vec<Entry>, Tree) {
    let mut tree = forest.walk(1, true);
    let mut entries = Vec::new();
    for rows in &tree.rows {
        forest.rows(*rows, |row| entries.extend(Entry::from_row(&row, encoding)));
    }
    if !tree.is_whole() {
        let found = forest.take_leaves(|row| Entry::from_row(row, encoding));
        tree.adopted += found.len() as u64;
        entries.extend(found.into_iter().flatten());
    }
    let mut names = HashSet::new();
    entries.retain(|entry| names.insert((entry.kind.clone(), entry.name.to_lowercase())));
    (entries, tree)
}
