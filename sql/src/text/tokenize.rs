//! From a value to words, by the tokenizer of its column: the same for rows, for indexes and for queries.

use forebay_core::text::{Language, Tokenizer as Kind};
use tantivy::tokenizer::{
    LowerCaser, RawTokenizer, RemoveLongFilter, SimpleTokenizer, Stemmer, TextAnalyzer, Token, TokenStream, Tokenizer,
};

/// Longer words (in bytes) are rubbish and not indexed, as tantivy's default has it.
const LONGEST_WORD: usize = 40;
/// Longer values of a raw column are not indexed: a word's length is limited in the index.
const LONGEST_RAW: usize = 4 << 10;

/// A word of a value: its place, counted in words, and itself.
pub(crate) type Word = (usize, String);

/// Cuts values into words.
pub(crate) fn analyzer(kind: Kind) -> TextAnalyzer {
    match kind {
        Kind::Default => plain().build(),
        Kind::Raw => TextAnalyzer::builder(RawTokenizer::default()).filter(RemoveLongFilter::limit(LONGEST_RAW)).build(),
        Kind::Stemmed(language) => plain().filter(Stemmer::new(stemmer(language))).build(),
        Kind::Cjk => {
            TextAnalyzer::builder(CjkTokenizer::default()).filter(RemoveLongFilter::limit(LONGEST_WORD)).filter(LowerCaser).build()
        }
    }
}

/// Cuts what stands before a `*`: as the column's tokenizer, but a part of a word has no stem.
pub(crate) fn prefix_analyzer(kind: Kind) -> TextAnalyzer {
    match kind {
        Kind::Stemmed(_) => analyzer(Kind::Default),
        other => analyzer(other),
    }
}

fn plain() -> tantivy::tokenizer::TextAnalyzerBuilder<impl Tokenizer> {
    TextAnalyzer::builder(SimpleTokenizer::default()).filter(RemoveLongFilter::limit(LONGEST_WORD)).filter(LowerCaser)
}

/// The words of a text.
pub(crate) fn words(analyzer: &mut TextAnalyzer, text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    analyzer.token_stream(text).process(&mut |token| words.push((token.position, token.text.clone())));
    words
}

fn stemmer(language: Language) -> tantivy::tokenizer::Language {
    use tantivy::tokenizer::Language as L;
    match language {
        Language::Arabic => L::Arabic,
        Language::Danish => L::Danish,
        Language::Dutch => L::Dutch,
        Language::English => L::English,
        Language::Finnish => L::Finnish,
        Language::French => L::French,
        Language::German => L::German,
        Language::Greek => L::Greek,
        Language::Hungarian => L::Hungarian,
        Language::Italian => L::Italian,
        Language::Norwegian => L::Norwegian,
        Language::Portuguese => L::Portuguese,
        Language::Romanian => L::Romanian,
        Language::Russian => L::Russian,
        Language::Spanish => L::Spanish,
        Language::Swedish => L::Swedish,
        Language::Tamil => L::Tamil,
        Language::Turkish => L::Turkish,
    }
}

/// Runs of letters and digits, and each character of a script that puts no spaces between words by itself: what a user types between such
/// characters becomes a phrase, which finds any part of a sentence without a dictionary.
#[derive(Debug, Clone, Default)]
struct CjkTokenizer {
    token: Token,
}

struct CjkStream<'a> {
    text: &'a str,
    at: usize,
    token: &'a mut Token,
}

impl Tokenizer for CjkTokenizer {
    type TokenStream<'a> = CjkStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> CjkStream<'a> {
        self.token.reset();
        CjkStream { text, at: 0, token: &mut self.token }
    }
}

impl TokenStream for CjkStream<'_> {
    fn advance(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let Some(start) = rest.find(char::is_alphanumeric) else { return false };
        let from = self.at + start;
        let mut characters = self.text[from..].char_indices();
        let first = characters.next().map(|(_, c)| c);
        let to = if first.is_some_and(is_cjk) {
            characters.next().map_or(self.text.len(), |(i, _)| from + i)
        } else {
            characters.find(|(_, c)| !c.is_alphanumeric() || is_cjk(*c)).map_or(self.text.len(), |(i, _)| from + i)
        };
        self.at = to;
        self.token.position = self.token.position.wrapping_add(1);
        self.token.offset_from = from;
        self.token.offset_to = to;
        self.token.text.clear();
        self.token.text.push_str(&self.text[from..to]);
        true
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

/// Ideographs, kana and Hangul.
fn is_cjk(c: char) -> bool {
    matches!(u32::from(c),
        0x1100..=0x11FF | 0x2E80..=0x2FDF | 0x3005..=0x3007 | 0x3040..=0x30FF | 0x3100..=0x318F | 0x31A0..=0x31FF | 0x3400..=0x4DBF
        | 0x4E00..=0x9FFF | 0xA960..=0xA97F | 0xAC00..=0xD7FF | 0xF900..=0xFAFF | 0xFF66..=0xFFDC | 0x1B000..=0x1B16F | 0x20000..=0x3FFFF)
}
