//! Commits against a store that answers wrongly: what stands there afterwards decides, never the answer.

use async_trait::async_trait;
use forebay_core::Kind;
use forebay_core::ids::VersionId;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::*;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

use super::super::{CommitOutcome, commit_at, commit_body, paths};
use crate::root::Root;
use crate::shard::tests::{epoch_commit, name, rows};

/// What happens to the next put of a commit.
#[derive(Debug, Clone)]
enum Fault {
    /// It lands and the answer is an error of the server.
    LandsAndFails,
    /// It lands, and the client's own retry meets it: "already exists".
    LandsAndConflicts,
    /// It doesn't land and the connection breaks.
    Lost,
    /// Someone else's bytes land first.
    Foreign(&'static str),
    /// A conflict is reported and nothing is there (a 409 while another write was running and then failed).
    PhantomConflict,
    /// The disk is full.
    Full,
}

#[derive(Debug)]
struct Faulty {
    inner: InMemory,
    faults: Mutex<VecDeque<Fault>>,
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

fn broken(text: &'static str) -> Error {
    Error::Generic { store: "faulty", source: text.into() }
}

fn conflict(path: &Path) -> Error {
    Error::AlreadyExists { path: path.to_string(), source: "409".into() }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fault = self.faults.lock().pop_front();
        let put = |payload| self.inner.put_opts(path, payload, options.clone());
        match fault {
            None => put(payload).await,
            Some(Fault::LandsAndFails) => put(payload).await.and(Err(broken("500"))),
            Some(Fault::LandsAndConflicts) => put(payload).await.and(Err(conflict(path))),
            Some(Fault::Lost) => Err(broken("timed out")),
            Some(Fault::PhantomConflict) => Err(conflict(path)),
            Some(Fault::Foreign(body)) => {
                put(body.into()).await?;
                put(payload).await
            }
            Some(Fault::Full) => Err(Error::Generic { store: "local", source: Box::new(std::io::Error::from_raw_os_error(28)) }),
        }
    }
    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(path, options).await
    }
    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

async fn commit(faults: &[Fault]) -> (forebay_core::Result<CommitOutcome>, Option<String>, String) {
    let store = Arc::new(Faulty { inner: InMemory::new(), faults: Mutex::new(faults.iter().cloned().collect()) });
    let root = Root::over(Arc::clone(&store) as Arc<dyn ObjectStore>);
    let body = commit_body(None, &epoch_commit(0, rows(0, 1).schema(), vec![])).unwrap();
    let outcome = commit_at(&root, &name(), VersionId(0), &body).await;
    let there = match store.inner.get(&paths::commit_file(&name(), VersionId(0))).await {
        Ok(got) => Some(String::from_utf8(got.bytes().await.unwrap().to_vec()).unwrap()),
        Err(_) => None,
    };
    (outcome, there, body)
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_landed_is_ours_whatever_was_answered() {
    for faults in [
        vec![],
        vec![Fault::LandsAndFails],
        vec![Fault::LandsAndConflicts],
        vec![Fault::Lost],
        vec![Fault::Lost, Fault::Lost, Fault::LandsAndFails],
        vec![Fault::PhantomConflict],
        vec![Fault::PhantomConflict, Fault::Lost, Fault::LandsAndConflicts],
    ] {
        let (outcome, there, body) = commit(&faults).await;
        assert_eq!(outcome.unwrap(), CommitOutcome::Ours, "{faults:?}");
        assert_eq!(there.as_deref(), Some(body.as_str()), "{faults:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_commit_stays_and_is_said_to_be_foreign() {
    for faults in [vec![Fault::Foreign("theirs\n")], vec![Fault::Lost, Fault::Foreign("theirs\n")]] {
        let (outcome, there, _) = commit(&faults).await;
        assert_eq!(outcome.unwrap(), CommitOutcome::Foreign, "{faults:?}");
        assert_eq!(there.as_deref(), Some("theirs\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_and_a_full_disk_are_errors() {
    let (outcome, there, _) = commit(&[Fault::Lost, Fault::Lost, Fault::Lost, Fault::Lost]).await;
    assert_eq!(outcome.unwrap_err().kind, Kind::Unavailable);
    assert_eq!(there, None);
    let (outcome, there, _) = commit(&[Fault::Full]).await;
    let error = outcome.unwrap_err();
    assert!(error.kind == Kind::ResourceExhausted && error.message.contains("disk full"), "{error}");
    assert!(error.message.contains("_delta_log/00000000000000000000.json"), "{error}");
    assert_eq!(there, None);
}

#[tokio::test]
async fn the_same_bytes_again_are_ours_and_a_gap_is_refused() {
    let root = Root::open("memory://", true).await.unwrap();
    let body = commit_body(None, &epoch_commit(0, rows(0, 1).schema(), vec![])).unwrap();
    for _ in 0..3 {
        assert_eq!(commit_at(&root, &name(), VersionId(0), &body).await.unwrap(), CommitOutcome::Ours);
    }
    assert_eq!(commit_at(&root, &name(), VersionId(0), "other\n").await.unwrap(), CommitOutcome::Foreign);
    let gap = commit_at(&root, &name(), VersionId(5), &body).await.unwrap_err();
    assert!(gap.kind == Kind::FailedPrecondition && gap.message.contains("version 4"), "{gap}");
}
