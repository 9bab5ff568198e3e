//! What a text column's index is made with: names that are stored in pipelines, in the Delta log and in index bundles.
//!
//! Owns: the tokenizers' names, the columns of an index and how two of them compare. Must not know: how text is cut into words.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::suggest;

/// How a text column becomes words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Tokenizer {
    /// Runs of letters and digits, lower case.
    #[default]
    Default,
    /// The whole value is one word, as it is written.
    Raw,
    /// As the default, each word cut to its stem by a language's rules.
    Stemmed(Language),
    /// As the default, and each Chinese, Japanese or Korean character is a word of its own.
    Cjk,
}

macro_rules! languages {
    ($($name:ident => $word:literal),* $(,)?) => {
        /// A language whose words can be stemmed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Language { $($name),* }

        impl Language {
            /// Every language with the word that names it.
            pub const ALL: &'static [(&'static str, Language)] = &[$(($word, Language::$name)),*];

            /// The word that names it.
            pub fn word(self) -> &'static str {
                match self { $(Language::$name => $word),* }
            }
        }
    };
}

languages! {
    Arabic => "arabic", Danish => "danish", Dutch => "dutch", English => "english", Finnish => "finnish", French => "french",
    German => "german", Greek => "greek", Hungarian => "hungarian", Italian => "italian", Norwegian => "norwegian",
    Portuguese => "portuguese", Romanian => "romanian", Russian => "russian", Spanish => "spanish", Swedish => "swedish",
    Tamil => "tamil", Turkish => "turkish",
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Raw => f.write_str("raw"),
            Self::Cjk => f.write_str("cjk"),
            Self::Stemmed(language) => write!(f, "stemmed({})", language.word()),
        }
    }
}

impl From<Tokenizer> for String {
    fn from(tokenizer: Tokenizer) -> Self {
        tokenizer.to_string()
    }
}

impl TryFrom<String> for Tokenizer {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Tokenizer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let shown = text.escape_debug();
        match text {
            "default" => return Ok(Self::Default),
            "raw" => return Ok(Self::Raw),
            "cjk" => return Ok(Self::Cjk),
            _ => {}
        }
        let languages = || Language::ALL.iter().map(|(word, _)| *word);
        if text == "stemmed" {
            return Err(Error::bad_input("`stemmed` needs a language").with_remedy("write it as stemmed(english)"));
        }
        let Some(word) = text.strip_prefix("stemmed(").and_then(|rest| rest.strip_suffix(')')) else {
            let known = ["default", "raw", "cjk", "stemmed(english)"];
            let remedy = suggest::remedy(text, known).unwrap_or_default();
            return Err(Error::bad_input(format!("`{shown}` is not a tokenizer")).with_remedy(remedy));
        };
        match Language::ALL.iter().find(|(known, _)| *known == word) {
            Some((_, language)) => Ok(Self::Stemmed(*language)),
            None => {
                let remedy = suggest::remedy(word, languages()).unwrap_or_default();
                Err(Error::bad_input(format!("no stemmer for the language `{}`", word.escape_debug())).with_remedy(remedy))
            }
        }
    }
}

/// The text columns of an index with their tokenizers.
pub type TextColumns = BTreeMap<String, Tokenizer>;

/// Where a shard's text index is and what it holds; in the journal with the staged shard, and in its add action's tags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleMeta {
    /// Relative to the dataset's table, in its private folder.
    pub path: String,
    /// Size of the object in bytes.
    pub size: u64,
    /// BLAKE3 of the whole object, its first 32 hex digits.
    pub digest: String,
    /// The columns that can be searched in it.
    pub columns: TextColumns,
}

impl BundleMeta {
    /// Whether it answers for a column as a dataset's index now wants it.
    pub fn covers(&self, column: &str, tokenizer: Tokenizer) -> bool {
        self.columns.get(column) == Some(&tokenizer)
    }

    /// Whether it answers for all of an index.
    pub fn covers_all(&self, columns: &TextColumns) -> bool {
        columns.iter().all(|(column, tokenizer)| self.covers(column, *tokenizer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        let stemmed = Language::ALL.iter().map(|(_, l)| Tokenizer::Stemmed(*l));
        for tokenizer in [Tokenizer::Default, Tokenizer::Raw, Tokenizer::Cjk].into_iter().chain(stemmed) {
            assert_eq!(tokenizer.to_string().parse::<Tokenizer>(), Ok(tokenizer));
            let json = serde_json::to_string(&tokenizer).unwrap();
            assert_eq!(serde_json::from_str::<Tokenizer>(&json).unwrap(), tokenizer);
        }
    }

    #[test]
    fn wrong_names_say_which_are_known() {
        for (text, part) in [
            ("stemed(english)", "did you mean `stemmed(english)`?"),
            ("stemmed", "write it as stemmed(english)"),
            ("stemmed(englsh)", "did you mean `english`?"),
            ("stemmed(klingon)", "the nearest known one is"),
            ("", "known are"),
        ] {
            let error = text.parse::<Tokenizer>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_bundle_covers_what_it_was_made_with() {
        let columns = TextColumns::from([("a".to_owned(), Tokenizer::Default), ("b".to_owned(), Tokenizer::Raw)]);
        let bundle = BundleMeta { path: "p".into(), size: 1, digest: String::new(), columns: columns.clone() };
        assert!(bundle.covers_all(&columns) && bundle.covers_all(&TextColumns::new()) && bundle.covers("b", Tokenizer::Raw));
        assert!(!bundle.covers("b", Tokenizer::Default) && !bundle.covers("c", Tokenizer::Default));
    }
}
