//! Listings that survive a broken answer: the stores' clients repeat a request that fails, not one whose answer breaks off in its body.

use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, ObjectStore};
use std::time::Duration;

use futures::TryStreamExt;

/// Tries of one listing, the first included.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);

/// Asks again, ever later, while the error may be one of the way and not of the store.
pub(crate) async fn again<T, E, F: Future<Output = Result<T, E>>>(mut ask: impl FnMut() -> F, broken: impl Fn(&E) -> bool) -> Result<T, E> {
    let mut tries = 1;
    loop {
        match ask().await {
            Err(e) if tries < TRIES && broken(&e) => tokio::time::sleep(PAUSE * (1 << tries)).await,
            done => return done,
        }
        tries += 1;
    }
}

/// An answer that broke off. A request that failed was repeated by the client until it gave up.
fn broken(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. }) && broken_text(error)
}

/// The clients name no error for it, so their words have to do.
pub(crate) fn broken_text(error: &dyn std::fmt::Display) -> bool {
    error.to_string().contains("response body")
}

/// Everything below a prefix.
pub(crate) async fn list(store: &dyn ObjectStore, prefix: &Path) -> object_store::Result<Vec<ObjectMeta>> {
    again(|| store.list(Some(prefix)).try_collect(), broken).await
}

/// The objects and folders directly below a prefix.
pub(crate) async fn list_folder(store: &dyn ObjectStore, prefix: &Path) -> object_store::Result<ListResult> {
    again(|| store.list_with_delimiter(Some(prefix)), broken).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn generic() -> object_store::Error {
        object_store::Error::Generic { store: "test", source: "Error getting list response body".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn broken_answers_are_asked_for_again_and_others_are_not() {
        let asked = Cell::new(0);
        let fails_until = |last: u32| {
            let asked = &asked;
            move || async move {
                asked.set(asked.get() + 1);
                if asked.get() < last { Err(generic()) } else { Ok(()) }
            }
        };
        assert!(again(fails_until(4), broken).await.is_ok());
        assert_eq!(asked.replace(0), 4);
        assert!(again(fails_until(u32::MAX), broken).await.is_err());
        assert_eq!(asked.replace(0), TRIES);
        let absent = || async {
            asked.set(asked.get() + 1);
            Err::<(), _>(object_store::Error::NotFound { path: "x".into(), source: "no".into() })
        };
        assert!(again(absent, broken).await.is_err());
        assert_eq!(asked.get(), 1);
    }
}
