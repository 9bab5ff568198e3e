//! The query language: text to a tree, with the position of what is wrong.
//!
//! | written | finds |
//! |---|---|
//! | `red car` | rows with both words |
//! | `red OR car` | with one of them |
//! | `red -car`, `red NOT car` | with the first and without the second |
//! | `(red OR blue) AND car` | as it reads; `AND` binds closer than `OR` |
//! | `"red car"` | the words next to each other |
//! | `title:red`, `title:(red car)` | in one column |
//! | `photo*`, `"red ca"*` | words that begin so; a phrase whose last word begins so |
//! | `colour~`, `colour~2` | words within one or two edits |
//!
//! A backslash takes the meaning from the character behind it. The same language is read by [`crate::catalog`]'s `search` and `text_match`.

use forebay_core::{Error, Result};
use std::iter::Peekable;
use std::str::CharIndices;

/// Longer queries (in bytes) are refused.
const MAX_LENGTH: usize = 16 << 10;
/// Parentheses within parentheses.
const MAX_DEPTH: usize = 64;
/// Words and phrases of one query: each is looked up in every shard.
const MAX_LEAVES: usize = 1_000;

/// A query as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
    Leaf(Leaf),
}

/// A word or a phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The column it is looked for in, with its position; all searched ones for none.
    pub(crate) field: Option<(String, usize)>,
    pub(crate) text: String,
    pub(crate) kind: Kind,
    /// Where it begins, in characters from 1.
    pub(crate) at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A word, or several without spaces between them, which are a phrase.
    Word,
    Phrase,
    /// The last word only begins so.
    Prefix,
    /// Within so many edits.
    Fuzzy(u8),
}

/// Says what is wrong with a query, and where.
pub(crate) fn wrong(query: &str, at: usize, what: impl std::fmt::Display) -> Error {
    let shown: String = query.chars().take(200).collect();
    Error::bad_input(format!("bad search query `{}`: {what} (character {at})", shown.escape_debug()))
}

/// Reads a query.
///
/// # Errors
/// `BadInput` with the position, counted in characters from 1.
pub(crate) fn parse(query: &str) -> Result<Node> {
    if query.len() > MAX_LENGTH {
        return Err(Error::bad_input(format!("the search query is {} bytes long; the limit is {MAX_LENGTH}", query.len())));
    }
    let mut parser = Parser { query, tokens: tokens(query)?.into_iter().peekable(), leaves: 0 };
    let node = parser.any(0, None)?;
    match parser.tokens.next() {
        None => Ok(node),
        Some(token) => Err(wrong(query, token.at, "a `)` without its `(`").with_remedy("remove it, or quote it")),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    at: usize,
    is: Is,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Is {
    Open,
    Close,
    And,
    Or,
    Not,
    /// `name:` in front of what follows.
    Field(String),
    Text(String, Kind),
}

fn tokens(query: &str) -> Result<Vec<Token>> {
    let mut lexer = Lexer { query, rest: query.char_indices().peekable(), at: 1 };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.token()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    query: &'a str,
    rest: Peekable<CharIndices<'a>>,
    at: usize,
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let (_, c) = self.rest.next()?;
        self.at += 1;
        Some(c)
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().map(|(_, c)| *c)
    }

    fn token(&mut self) -> Result<Option<Token>> {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
        let at = self.at;
        let is = match self.peek() {
            None => return Ok(None),
            Some('(') => {
                self.next();
                Is::Open
            }
            Some(')') => {
                self.next();
                Is::Close
            }
            Some('"') => self.phrase(at)?,
            Some('-') => {
                self.next();
                // A dash on its own is punctuation.
                if self.peek().is_none_or(|c| c.is_whitespace() || c == ')') { Is::Text("-".into(), Kind::Word) } else { Is::Not }
            }
            Some('+') => {
                while self.peek() == Some('+') {
                    self.next();
                }
                if self.peek().is_some_and(|c| !c.is_whitespace() && c != ')') {
                    return self.token();
                }
                Is::Text("+".into(), Kind::Word)
            }
            Some(_) => self.word(at)?,
        };
        Ok(Some(Token { at, is }))
    }

    fn phrase(&mut self, at: usize) -> Result<Is> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None => return Err(wrong(self.query, at, "a `\"` without its end").with_remedy("close it, or write it as \\\"")),
                Some('"') => break,
                Some('\\') => text.extend(self.next()),
                Some(c) => text.push(c),
            }
        }
        match self.peek() {
            Some('*') => {
                self.next();
                Ok(Is::Text(text, Kind::Prefix))
            }
            Some('~') => Err(wrong(self.query, self.at, "a phrase has no `~`").with_remedy("use it with one word, as colour~2")),
            _ => Ok(Is::Text(text, Kind::Phrase)),
        }
    }

    fn word(&mut self, at: usize) -> Result<Is> {
        let (mut text, mut escaped) = (String::new(), false);
        while let Some(c) = self.peek() {
            match c {
                _ if c.is_whitespace() || matches!(c, '(' | ')' | '"') => break,
                '\\' => {
                    self.next();
                    escaped = true;
                    text.extend(self.next());
                }
                ':' if !escaped && is_name(&text) => {
                    self.next();
                    // "note: " is a word with punctuation, `title:red` a column.
                    if self.peek().is_none_or(char::is_whitespace) {
                        text.push(':');
                        continue;
                    }
                    return Ok(Is::Field(text));
                }
                '*' => {
                    self.next();
                    if self.ends() {
                        return self.with(text, at, Kind::Prefix);
                    }
                    return Err(wrong(self.query, self.at - 1, "a `*` stands at the end of a word")
                        .with_remedy("words can be searched by how they begin; write \\* for the character"));
                }
                '~' => {
                    self.next();
                    return self.fuzzy(text, at);
                }
                _ => {
                    self.next();
                    text.push(c);
                }
            }
        }
        Ok(match text.as_str() {
            "AND" if !escaped => Is::And,
            "OR" if !escaped => Is::Or,
            "NOT" if !escaped => Is::Not,
            _ => Is::Text(text, Kind::Word),
        })
    }

    /// Whether a word ends here.
    fn ends(&mut self) -> bool {
        self.peek().is_none_or(|c| c.is_whitespace() || matches!(c, '(' | ')'))
    }

    fn fuzzy(&mut self, text: String, at: usize) -> Result<Is> {
        let edits = match self.peek() {
            Some(c) if c.is_ascii_digit() => {
                self.next();
                c.to_digit(10).unwrap_or_default()
            }
            _ => 1,
        };
        if !self.ends() || !(1..=2).contains(&edits) {
            return Err(wrong(self.query, self.at.saturating_sub(1), "behind `~` stands 1 or 2").with_remedy("write colour~ or colour~2"));
        }
        self.with(text, at, Kind::Fuzzy(u8::try_from(edits).unwrap_or(1)))
    }

    fn with(&self, text: String, at: usize, kind: Kind) -> Result<Is> {
        if text.is_empty() {
            return Err(wrong(self.query, at, "a word is missing before it").with_remedy("write photo* or colour~"));
        }
        Ok(Is::Text(text, kind))
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

struct Parser<'a> {
    query: &'a str,
    tokens: Peekable<std::vec::IntoIter<Token>>,
    leaves: usize,
}

type Field = Option<(String, usize)>;

impl Parser<'_> {
    fn end(&self) -> usize {
        self.query.chars().count() + 1
    }

    /// `all OR all OR ...`
    fn any(&mut self, depth: usize, field: Field) -> Result<Node> {
        let mut nodes = vec![self.all(depth, field.clone())?];
        while self.tokens.next_if(|t| t.is == Is::Or).is_some() {
            nodes.push(self.all(depth, field.clone())?);
        }
        Ok(single(nodes, Node::Any))
    }

    /// `one one AND one ...`
    fn all(&mut self, depth: usize, field: Field) -> Result<Node> {
        let mut nodes = vec![self.one(depth, field.clone())?];
        loop {
            let and = self.tokens.next_if(|t| t.is == Is::And).is_some();
            match self.tokens.peek().map(|t| &t.is) {
                None | Some(Is::Or | Is::Close) if !and => return Ok(single(nodes, Node::All)),
                _ => nodes.push(self.one(depth, field.clone())?),
            }
        }
    }

    fn one(&mut self, depth: usize, field: Field) -> Result<Node> {
        let missing = |at, what: &str| Err(wrong(self.query, at, what));
        let Some(token) = self.tokens.next() else {
            return missing(self.end(), "a word is missing at its end");
        };
        if depth >= MAX_DEPTH {
            return missing(token.at, "too many parentheses within each other");
        }
        match token.is {
            Is::Not => Ok(Node::Not(Box::new(self.one(depth + 1, field)?))),
            Is::Open => {
                let node = self.any(depth + 1, field)?;
                match self.tokens.next() {
                    Some(Token { is: Is::Close, .. }) => Ok(node),
                    _ => Err(wrong(self.query, token.at, "a `(` without its `)`").with_remedy("close it, or quote it")),
                }
            }
            Is::Field(_) if field.is_some() => missing(token.at, "a column within another column's parentheses"),
            Is::Field(name) => match self.tokens.peek().map(|t| &t.is) {
                Some(Is::Text(..) | Is::Open) => self.one(depth + 1, Some((name, token.at))),
                _ => missing(token.at, "behind a column stands a word, a phrase or parentheses"),
            },
            Is::Text(text, kind) => {
                self.leaves += 1;
                if self.leaves > MAX_LEAVES {
                    return Err(wrong(self.query, token.at, format!("more than {MAX_LEAVES} words")));
                }
                Ok(Node::Leaf(Leaf { field, text, kind, at: token.at }))
            }
            Is::Close => missing(token.at, "a word is missing before `)`"),
            Is::And => missing(token.at, "a word is missing before AND"),
            Is::Or => missing(token.at, "a word is missing before OR"),
        }
    }
}

fn single(mut nodes: Vec<Node>, many: fn(Vec<Node>) -> Node) -> Node {
    match (nodes.pop(), nodes.is_empty()) {
        (Some(node), true) => node,
        (last, _) => many(nodes.into_iter().chain(last).collect()),
    }
}
