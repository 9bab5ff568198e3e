//! [`Passes`] as JSON: a number, a list of numbers, "forever", or null for all stored.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

use super::Passes;
use crate::error::{Error, Result};

impl Passes {
    /// Reads the JSON form.
    pub fn from_value(value: &Value) -> Result<Self> {
        let refuse = |what: String| {
            Error::bad_input(what)
                .with_remedy("give a number of passes, a list of pass numbers, \"forever\", or null for all stored epochs")
        };
        let number = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        match value {
            Value::Null => Ok(Self::All),
            Value::String(word) if word == "forever" => Ok(Self::Forever),
            Value::Number(_) => match number(value) {
                Some(0) => Err(refuse("no passes at all".to_owned())),
                Some(count) => Ok(Self::Count(count)),
                None => Err(refuse(format!("`{value}` is not a number of passes"))),
            },
            Value::Array(items) => {
                let list: Option<Vec<u32>> = items.iter().map(number).collect();
                let list = list.ok_or_else(|| refuse("the list holds something else than pass numbers".to_owned()))?;
                let mut seen = BTreeSet::new();
                match list.iter().find(|pass| !seen.insert(**pass)) {
                    _ if list.is_empty() => Err(refuse("an empty list of passes".to_owned())),
                    Some(twice) => Err(refuse(format!("pass {twice} is named twice"))),
                    None => Ok(Self::List(list)),
                }
            }
            other => Err(refuse(format!("`{other}` is not a choice of passes"))),
        }
    }

    /// The pass numbers in order, given the count of epochs at the job's creation; `None` goes on for ever.
    pub fn numbers(&self, stored: u32) -> Option<Vec<u32>> {
        match self {
            Self::All => Some((0..stored).collect()),
            Self::Count(count) => Some((0..*count).collect()),
            Self::List(list) => Some(list.clone()),
            Self::Forever => None,
        }
    }

    /// The `index`-th pass of the job; `None` after the last. `stored` is the count of epochs at the job's creation.
    pub fn nth(&self, index: u32, stored: u32) -> Option<u32> {
        match self {
            Self::All => (index < stored).then_some(index),
            Self::Count(count) => (index < *count).then_some(index),
            Self::List(list) => list.get(usize::try_from(index).ok()?).copied(),
            Self::Forever => Some(index),
        }
    }
}

impl fmt::Display for Passes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("null"),
            Self::Count(count) => count.fmt(f),
            Self::List(list) => write!(f, "{list:?}"),
            Self::Forever => f.write_str("\"forever\""),
        }
    }
}

impl Serialize for Passes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_none(),
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::List(list) => list.serialize(serializer),
            Self::Forever => serializer.serialize_str("forever"),
        }
    }
}

impl<'de> Deserialize<'de> for Passes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
