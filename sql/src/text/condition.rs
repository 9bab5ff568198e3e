//! What a query demands of a row: its words, cut as the columns' values are, and how they are combined. Pure.

use forebay_core::text::{TextColumns, Tokenizer};
use forebay_core::{Error, Result, suggest};

use super::query::{Kind, Leaf, Node, parse, wrong};
use super::tokenize::{Word, analyzer, prefix_analyzer, words};

/// A condition on the words of some columns. Columns are numbers in [`Condition::columns`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub(crate) test: Test,
    columns: Vec<(String, Tokenizer)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Test {
    /// Every row, or none.
    Always(bool),
    All(Vec<Test>),
    Any(Vec<Test>),
    Not(Box<Test>),
    Term {
        column: usize,
        text: String,
    },
    /// At least two words with their places, the first at 0; with `prefix` the last one only begins so.
    Phrase {
        column: usize,
        words: Vec<Word>,
        prefix: bool,
    },
    Prefix {
        column: usize,
        text: String,
    },
    Fuzzy {
        column: usize,
        text: String,
        edits: u8,
    },
}

impl Condition {
    /// Reads a query over one column, as `text_match` does.
    ///
    /// # Errors
    /// `BadInput` with the position for a query that can't be read, or that names a column.
    pub fn on_column(query: &str, column: &str, tokenizer: Tokenizer) -> Result<Self> {
        let node = parse(query)?;
        if let Some((name, at)) = first_field(&node) {
            return Err(wrong(query, at, format!("text_match looks at one column, and `{name}:` names one"))
                .with_remedy("remove it, quote it, or combine several text_match with AND and OR"));
        }
        Self::new(query, &node, vec![(column.to_owned(), tokenizer)])
    }

    /// Reads a query over all text columns of a dataset, as `search` does; only those that it may look at are kept.
    ///
    /// # Errors
    /// `BadInput` with the position for a query that can't be read, or that names another column.
    pub fn on_columns(query: &str, columns: &TextColumns) -> Result<Self> {
        let mut condition = Self::new(query, &parse(query)?, columns.iter().map(|(c, t)| (c.clone(), *t)).collect())?;
        let mut used = vec![false; condition.columns.len()];
        condition.test.each(&mut |leaf| {
            if let Some(column) = leaf.column() {
                used[column] = true;
            }
        });
        let places: Vec<usize> = (0..used.len()).map(|column| used[..column].iter().filter(|u| **u).count()).collect();
        condition.test.renumber(&places);
        let mut keep = used.iter();
        condition.columns.retain(|_| keep.next().copied().unwrap_or(false));
        Ok(condition)
    }

    fn new(query: &str, node: &Node, columns: Vec<(String, Tokenizer)>) -> Result<Self> {
        let test = Reader { query, columns: &columns }.node(node)?;
        let test = test.ok_or_else(|| wrong(query, 1, "it has no word to look for").with_remedy("give at least one word"))?;
        Ok(Self { test, columns })
    }

    /// The columns that it looks at.
    pub fn columns(&self) -> &[(String, Tokenizer)] {
        &self.columns
    }

    /// Whether a row without any words meets it.
    pub(crate) fn meets_nothing(&self) -> bool {
        self.test.meets_nothing()
    }

    /// The words whose frequency counts for a row's score, as (column, word).
    pub(crate) fn scored_words(&self) -> Vec<(usize, &str)> {
        let mut found = Vec::new();
        self.test.each(&mut |leaf| match leaf {
            Test::Term { column, text } => found.push((*column, text.as_str())),
            Test::Phrase { column, words, prefix: false } => found.extend(words.iter().map(|(_, text)| (*column, text.as_str()))),
            _ => {}
        });
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl Test {
    fn column(&self) -> Option<usize> {
        match self {
            Self::Term { column, .. } | Self::Phrase { column, .. } | Self::Prefix { column, .. } | Self::Fuzzy { column, .. } => {
                Some(*column)
            }
            Self::Always(_) | Self::All(_) | Self::Any(_) | Self::Not(_) => None,
        }
    }

    fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Test)) {
        match self {
            Self::All(tests) | Self::Any(tests) => tests.iter().for_each(|t| t.each(visit)),
            Self::Not(test) => test.each(visit),
            leaf => visit(leaf),
        }
    }

    fn renumber(&mut self, places: &[usize]) {
        match self {
            Self::All(tests) | Self::Any(tests) => tests.iter_mut().for_each(|t| t.renumber(places)),
            Self::Not(test) => test.renumber(places),
            Self::Term { column, .. } | Self::Phrase { column, .. } | Self::Prefix { column, .. } | Self::Fuzzy { column, .. } => {
                *column = places.get(*column).copied().unwrap_or(*column);
            }
            Self::Always(_) => {}
        }
    }

    fn meets_nothing(&self) -> bool {
        match self {
            Self::Always(answer) => *answer,
            Self::All(tests) => tests.iter().all(Self::meets_nothing),
            Self::Any(tests) => tests.iter().any(Self::meets_nothing),
            Self::Not(test) => !test.meets_nothing(),
            Self::Term { .. } | Self::Phrase { .. } | Self::Prefix { .. } | Self::Fuzzy { .. } => false,
        }
    }
}

fn first_field(node: &Node) -> Option<(&str, usize)> {
    match node {
        Node::All(nodes) | Node::Any(nodes) => nodes.iter().find_map(first_field),
        Node::Not(node) => first_field(node),
        Node::Leaf(leaf) => leaf.field.as_ref().map(|(name, at)| (name.as_str(), *at)),
    }
}

struct Reader<'a> {
    query: &'a str,
    columns: &'a [(String, Tokenizer)],
}

impl Reader<'_> {
    /// `None` where nothing but punctuation was written: it demands nothing.
    fn node(&self, node: &Node) -> Result<Option<Test>> {
        match node {
            Node::All(nodes) => self.many(nodes, Test::All),
            Node::Any(nodes) => self.many(nodes, Test::Any),
            Node::Not(node) => Ok(self.node(node)?.map(|test| Test::Not(Box::new(test)))),
            Node::Leaf(leaf) => self.leaf(leaf),
        }
    }

    fn many(&self, nodes: &[Node], many: fn(Vec<Test>) -> Test) -> Result<Option<Test>> {
        let mut tests = Vec::with_capacity(nodes.len());
        for node in nodes {
            tests.extend(self.node(node)?);
        }
        Ok(match tests.len() {
            0 => None,
            1 => tests.pop(),
            _ => Some(many(tests)),
        })
    }

    fn leaf(&self, leaf: &Leaf) -> Result<Option<Test>> {
        let columns: Vec<usize> = match &leaf.field {
            None => (0..self.columns.len()).collect(),
            Some((name, at)) => vec![self.column(name, *at)?],
        };
        let mut tests = Vec::with_capacity(columns.len());
        for column in columns {
            tests.extend(self.in_column(leaf, column)?);
        }
        Ok(match tests.len() {
            0 => None,
            1 => tests.pop(),
            _ => Some(Test::Any(tests)),
        })
    }

    fn column(&self, name: &str, at: usize) -> Result<usize> {
        self.columns.iter().position(|(known, _)| known == name).ok_or_else(|| {
            let near = suggest::remedy(name, self.columns.iter().map(|(known, _)| known.as_str()));
            let error: Error = wrong(self.query, at, format!("there is no text column `{}`", name.escape_debug()));
            error.with_remedy(format!("{}; quote the word if it is none", near.unwrap_or_default()))
        })
    }

    fn in_column(&self, leaf: &Leaf, column: usize) -> Result<Option<Test>> {
        let tokenizer = self.columns[column].1;
        let mut analyzer = if leaf.kind == Kind::Prefix { prefix_analyzer(tokenizer) } else { analyzer(tokenizer) };
        let mut found = words(&mut analyzer, &leaf.text);
        let first = found.first().map_or(0, |(place, _)| *place);
        found.iter_mut().for_each(|(place, _)| *place -= first);
        let one = found.len() == 1;
        let many = found.len() > 1;
        Ok(Some(match leaf.kind {
            // Punctuation demands nothing; a word that is too long for the index is in no row.
            _ if found.is_empty() && !leaf.text.contains(char::is_alphanumeric) => return Ok(None),
            _ if found.is_empty() => Test::Always(false),
            Kind::Fuzzy(_) if many => {
                return Err(wrong(
                    self.query,
                    leaf.at,
                    format!("`{}~` is {} words in the column `{}`", leaf.text, found.len(), self.columns[column].0),
                )
                .with_remedy("`~` stands behind one word"));
            }
            Kind::Fuzzy(edits) => Test::Fuzzy { column, text: found.swap_remove(0).1, edits },
            Kind::Prefix if one => Test::Prefix { column, text: found.swap_remove(0).1 },
            Kind::Word | Kind::Phrase if one => Test::Term { column, text: found.swap_remove(0).1 },
            kind => Test::Phrase { column, words: found, prefix: kind == Kind::Prefix },
        }))
    }
}
