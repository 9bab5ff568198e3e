//! Names that are being given: datasets and views share one name space, and making either takes more than one step.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;

/// What a name is given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    Dataset,
    View,
}

/// The names that calls of this process are about to give. A root has one owner, so nobody else gives any.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Arc<Mutex<BTreeMap<String, (Named, usize)>>>);

/// A name that is being given; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    names: Names,
    name: String,
}

impl Names {
    /// Holds a name, so that what is looked up next stays true until the name is given. Several may make one dataset.
    ///
    /// # Errors
    /// `AlreadyExists` while it is being given to the other kind, or to another view.
    pub(crate) fn hold(&self, name: &str, kind: Named) -> Result<Held> {
        let mut held = self.0.lock();
        match held.get_mut(name) {
            None => {
                held.insert(name.to_owned(), (kind, 1));
            }
            Some((Named::Dataset, count)) if kind == Named::Dataset => *count += 1,
            Some((other, _)) => {
                let what = if *other == Named::Dataset { "a dataset" } else { "a view" };
                return Err(Error::new(Kind::AlreadyExists, format!("{what} of the name `{name}` is being made"))
                    .with_remedy("choose another name"));
            }
        }
        Ok(Held { names: self.clone(), name: name.to_owned() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.names.0.lock();
        if let Some((_, count)) = held.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_is_given_once() {
        let names = Names::default();
        let (first, second) = (names.hold("a", Named::Dataset).unwrap(), names.hold("a", Named::Dataset).unwrap());
        assert_eq!(names.hold("a", Named::View).unwrap_err().kind, Kind::AlreadyExists);
        drop(first);
        assert!(names.hold("a", Named::View).is_err());
        drop(second);
        let view = names.hold("a", Named::View).unwrap();
        assert!(names.hold("a", Named::View).is_err() && names.hold("a", Named::Dataset).is_err());
        assert!(names.hold("b", Named::Dataset).is_ok());
        drop(view);
        assert!(names.0.lock().is_empty());
    }
}
