#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use forebay_core::Kind;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as StorePath;
use object_store::{
    CopyOptions, GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, RenameOptions,
};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::*;

/// Writes down each call, with what the disk held at that moment, and fails them when told to.
#[derive(Debug, Default)]
struct Recorder {
    calls: Mutex<Vec<Call>>,
    fail: Mutex<Option<io::ErrorKind>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Call {
    File { length: u64, target_exists: bool },
    Folder(PathBuf),
}

impl Syncer for Recorder {
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()> {
        if let Some(kind) = *self.fail.lock() {
            return Err(kind.into());
        }
        let staged = path.to_string_lossy().into_owned();
        let target = staged.rsplit_once('#').unwrap().0;
        self.calls.lock().push(Call::File { length: file.metadata()?.len(), target_exists: Path::new(target).exists() });
        DiskSyncer.sync_file(file, path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.calls.lock().push(Call::Folder(path.to_owned()));
        DiskSyncer.sync_folder(path)
    }
}

async fn recorded() -> (tempfile::TempDir, Root, Arc<Recorder>) {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    let root = Root::open_with(folder.path().to_str().unwrap(), true, Arc::clone(&recorder) as Arc<dyn Syncer>).await.unwrap();
    recorder.calls.lock().clear();
    (folder, root, recorder)
}

fn take(recorder: &Recorder) -> Vec<Call> {
    std::mem::take(&mut *recorder.calls.lock())
}

#[tokio::test]
async fn a_put_is_durable_before_it_is_visible_and_its_names_before_it_returns() {
    let (_folder, root, recorder) = recorded().await;
    let at = |p: &str| root.local_path().unwrap().join(p);
    for mode in [PutMode::Create, PutMode::Overwrite] {
        let name = format!("{mode:?}/b/c.json");
        root.store().put_opts(&StorePath::from(name.as_str()), "hello".into(), PutOptions::from(mode.clone())).await.unwrap();
        let top = format!("{mode:?}");
        let calls = take(&recorder);
        assert_eq!(
            calls,
            [
                // The new folders' names, innermost first, then the bytes, then the file's name.
                Call::Folder(at(&top)),
                Call::Folder(at("")),
                Call::File { length: 5, target_exists: false },
                Call::Folder(at(&format!("{top}/b"))),
            ]
        );
        root.store().put(&StorePath::from(format!("{top}/b/d.json")), "x".into()).await.unwrap();
        assert_eq!(take(&recorder), [Call::File { length: 1, target_exists: false }, Call::Folder(at(&format!("{top}/b")))]);
    }
}

#[tokio::test]
async fn a_folder_that_someone_else_made_is_not_taken_for_durable() {
    let (_folder, root, recorder) = recorded().await;
    let at = |p: &str| root.local_path().unwrap().join(p);
    std::fs::create_dir(at("x")).unwrap();
    root.store().put(&StorePath::from("x/a"), "1".into()).await.unwrap();
    assert_eq!(take(&recorder), [Call::Folder(at("")), Call::File { length: 1, target_exists: false }, Call::Folder(at("x"))]);
    root.store().put(&StorePath::from("x/y/b"), "1".into()).await.unwrap();
    root.store().put(&StorePath::from("x/y/c"), "1".into()).await.unwrap();
    let folders: Vec<_> = take(&recorder).into_iter().filter(|c| matches!(c, Call::Folder(_))).collect();
    assert_eq!(folders, [Call::Folder(at("x")), Call::Folder(at("x/y")), Call::Folder(at("x/y"))]);
    // Gone and made again, it is new again.
    std::fs::remove_dir_all(at("x")).unwrap();
    root.store().put(&StorePath::from("x/a"), "1".into()).await.unwrap();
    assert!(take(&recorder).contains(&Call::Folder(at(""))));
}

#[tokio::test]
async fn uploads_copies_renames_and_deletes_are_durable_too() {
    let (_folder, root, recorder) = recorded().await;
    let at = |p: &str| root.local_path().unwrap().join(p);
    let (a, b, c) = (StorePath::from("x/a"), StorePath::from("y/b"), StorePath::from("z/c"));
    let mut upload = root.store().put_multipart_opts(&a, PutMultipartOptions::default()).await.unwrap();
    let parts = [upload.put_part(vec![1_u8; 10].into()), upload.put_part(vec![2_u8; 5].into())];
    futures::future::try_join_all(parts).await.unwrap();
    assert!(root.store().head(&a).await.is_err(), "visible before it is complete");
    upload.complete().await.unwrap();
    assert_eq!(take(&recorder), [Call::Folder(at("")), Call::File { length: 15, target_exists: false }, Call::Folder(at("x"))]);
    let bytes = root.store().get(&a).await.unwrap().bytes().await.unwrap();
    assert_eq!(&bytes[..], [[1_u8; 10].as_slice(), &[2; 5]].concat());
    root.store().copy_opts(&a, &b, CopyOptions::default()).await.unwrap();
    assert!(take(&recorder).contains(&Call::Folder(at("y"))));
    root.store().rename_opts(&b, &c, RenameOptions::default()).await.unwrap();
    let calls = take(&recorder);
    assert!(calls.contains(&Call::Folder(at("z"))) && calls.contains(&Call::Folder(at("y"))), "{calls:?}");
    root.store().delete(&c).await.unwrap();
    assert_eq!(take(&recorder), [Call::Folder(at("z"))]);
}

#[tokio::test]
async fn a_put_that_could_not_be_synced_is_not_there() {
    let (folder, root, recorder) = recorded().await;
    *recorder.fail.lock() = Some(io::ErrorKind::StorageFull);
    let path = StorePath::from("a/b");
    let error = root.store().put(&path, "x".into()).await.unwrap_err();
    let error = root.error("write the shard", &path, &error);
    assert_ne!(error.kind, Kind::NotFound);
    assert!(root.store().head(&path).await.is_err());
    assert_eq!(std::fs::read_dir(folder.path().join("a")).unwrap().count(), 0, "the staged file stayed");
}

#[tokio::test]
async fn only_one_create_wins_and_abandoned_uploads_leave_nothing() {
    let (folder, root, _) = recorded().await;
    let path = StorePath::from("log/1.json");
    let tries = (0..8).map(|i| {
        let (store, path) = (root.store(), path.clone());
        async move { store.put_opts(&path, PutPayload::from(format!("{i}")), PutMode::Create.into()).await }
    });
    let results = futures::future::join_all(tries).await;
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
    assert!(results.iter().filter_map(|r| r.as_ref().err()).all(|e| matches!(e, object_store::Error::AlreadyExists { .. })));
    let mut upload = root.store().put_multipart(&StorePath::from("log/2.json")).await.unwrap();
    upload.put_part("abc".into()).await.unwrap();
    assert_eq!(root.store().list(None).try_collect::<Vec<_>>().await.unwrap().len(), 1);
    drop(upload);
    assert_eq!(std::fs::read_dir(folder.path().join("log")).unwrap().count(), 1);
}

#[test]
fn without_hard_links_a_rename_does_not_replace_either() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    std::fs::write(&a, "new").unwrap();
    std::fs::write(&b, "old").unwrap();
    assert_eq!(durable::rename_if_free(&a, &b).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&b).unwrap(), b"old");
    std::fs::remove_file(&b).unwrap();
    durable::rename_if_free(&a, &b).unwrap();
    assert_eq!((std::fs::read(&b).unwrap(), a.exists()), (b"new".to_vec(), false));
}

#[tokio::test]
async fn the_journals_store_syncs_too() {
    let (_folder, root, _) = recorded().await;
    assert!(format!("{:?}", root.journal_store()).contains("fsync: true"));
}

#[tokio::test]
async fn roots_open_by_path_and_url() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new").join("root");
    let text = path.to_str().unwrap();
    let missing = Root::open(text, false).await.unwrap_err();
    assert_eq!(missing.kind, Kind::NotFound);
    assert!(missing.message.contains(text) && missing.remedy.is_some());
    let root = Root::open(text, true).await.unwrap();
    assert_eq!(root.local_path().unwrap(), path.canonicalize().unwrap());
    let again = Root::open(&format!("file://{text}"), false).await.unwrap();
    assert_eq!(again.url(), root.url());
    let name = forebay_core::ids::DatasetName::parse("digits").unwrap();
    assert!(root.table_url(&name).ends_with("/root/datasets/digits"));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "the probe stayed");
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert_eq!(Root::open(folder.path().join("file").to_str().unwrap(), false).await.unwrap_err().kind, Kind::BadInput);
    assert!(Root::open("memory://", true).await.unwrap().local_path().is_none());
}

#[tokio::test]
async fn urls_that_are_wrong_or_carry_secrets_are_refused_without_an_echo() {
    for url in ["s3://KEY:hunter2secret@bucket/x", "s3://bucket/x?token=hunter2secret", "gs://user:hunter2secret@b"] {
        let error = Root::open(url, false).await.unwrap_err();
        assert_eq!(error.kind, Kind::BadInput);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    for url in ["ftp://host/x", "", "s3://", "http://[bad"] {
        assert_eq!(Root::open(url, false).await.unwrap_err().kind, Kind::BadInput, "{url}");
    }
}

#[tokio::test]
async fn remote_roots_open_in_both_majors_without_a_request() {
    let root = Root::open("s3://bucket/a/b/", false).await.unwrap();
    assert_eq!((root.url(), root.local_path()), ("s3://bucket/a/b", None));
    assert_eq!(root.table_url(&forebay_core::ids::DatasetName::parse("digits").unwrap()), "s3://bucket/a/b/datasets/digits");
    assert!(format!("{:?}", root.journal_store()).contains("bucket"));
    assert_eq!(format!("{root:?}"), "Root(\"s3://bucket/a/b\")");
    let error = Root::open("az://container/x", false).await.unwrap_err();
    assert!(error.kind == Kind::BadInput && error.message.contains("az://container/x"), "{error}");
}

#[test]
fn secrets_are_taken_out_of_texts() {
    let text = redact("GET https://bucket.host/a/b?X-Amz-Signature=abc&x=1) failed, see http://me:pw@host/p end");
    assert_eq!(text, "GET https://bucket.host/a/b?***) failed, see http://***@host/p end");
    assert_eq!(redact("nothing to hide"), "nothing to hide");
}

#[test]
fn errors_of_the_disk_say_what_happened() {
    let full = io_error("write the shard", "/data/x", &io::ErrorKind::StorageFull.into());
    assert_eq!(full.kind, Kind::ResourceExhausted);
    assert_eq!(full.message, "can't write the shard /data/x: disk full");
    let wrapped = object_store::Error::Generic { store: "local", source: Box::new(io::Error::from_raw_os_error(30)) };
    let read_only = store_error("write the shard", "/data/x", &wrapped);
    assert_eq!(
        (read_only.kind, read_only.message.as_str()),
        (Kind::PermissionDenied, "can't write the shard /data/x: read-only file system")
    );
    let denied = object_store::Error::Generic { store: "local", source: Box::new(io::Error::from_raw_os_error(13)) };
    assert_eq!(store_error("write", "x", &denied).kind, Kind::PermissionDenied);
    let refused = object_store::Error::Generic { store: "S3", source: Box::new(io::Error::from_raw_os_error(111)) };
    assert_eq!(store_error("write", "x", &refused).kind, Kind::Unavailable);
}

/// A store that takes every put, condition or not; or that looks at the condition before it gives others their turn, and then writes.
#[derive(Debug)]
struct Careless {
    inner: object_store::memory::InMemory,
    looks: bool,
    /// So many answers break off after half of their bytes.
    broken: AtomicU32,
}

impl Careless {
    fn new(looks: bool) -> Self {
        Self { inner: object_store::memory::InMemory::new(), looks, broken: AtomicU32::new(0) }
    }
}

impl std::fmt::Display for Careless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Careless")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Careless {
    async fn put_opts(&self, path: &StorePath, payload: PutPayload, _: PutOptions) -> object_store::Result<object_store::PutResult> {
        if self.looks && self.inner.head(path).await.is_ok() {
            return Err(object_store::Error::AlreadyExists { path: path.to_string(), source: "it is there".into() });
        }
        tokio::task::yield_now().await;
        self.inner.put_opts(path, payload, PutOptions::default()).await
    }
    async fn put_multipart_opts(
        &self,
        path: &StorePath,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn object_store::MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }
    async fn get_opts(&self, path: &StorePath, options: object_store::GetOptions) -> object_store::Result<object_store::GetResult> {
        let mut got = self.inner.get_opts(path, options).await?;
        if self.broken.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            let half = (got.range.end - got.range.start) as usize / 2;
            let GetResultPayload::Stream(bytes) = got.payload else { panic!("bytes in memory") };
            let bytes = Bytes::from(bytes.try_collect::<Vec<_>>().await?.concat()).slice(..half);
            let reset = || object_store::Error::Generic { store: "S3", source: "connection reset".into() };
            got.payload = GetResultPayload::Stream(stream::iter([Ok(bytes), Err(reset())]).boxed());
        }
        Ok(got)
    }
    fn delete_stream(
        &self,
        paths: futures::stream::BoxStream<'static, object_store::Result<StorePath>>,
    ) -> futures::stream::BoxStream<'static, object_store::Result<StorePath>> {
        self.inner.delete_stream(paths)
    }
    fn list(&self, prefix: Option<&StorePath>) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&StorePath>) -> object_store::Result<object_store::ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &StorePath, to: &StorePath, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_store_without_conditional_writes_is_refused() {
    let good = object_store::memory::InMemory::new();
    probe_conditional_writes(&good, "s3://good").await.unwrap();
    assert!(good.list(None).try_collect::<Vec<_>>().await.unwrap().is_empty(), "the probe stayed");
    for (looks, what) in [(false, "ignores conditional writes"), (true, "let two writers create an object at once")] {
        let careless = Careless::new(looks);
        let error = probe_conditional_writes(&careless, "s3://careless").await.unwrap_err();
        assert_eq!(error.kind, Kind::Unsupported);
        assert!(error.message.contains("s3://careless") && error.message.contains(what), "{error}");
        assert!(careless.inner.list(None).try_collect::<Vec<_>>().await.unwrap().is_empty(), "the probe stayed");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_asked_for_again() {
    let store = Arc::new(Careless::new(false));
    let (root, path) = (Root::over(store.clone()), StorePath::from("a/b"));
    store.put(&path, PutPayload::from_static(b"0123456789")).await.unwrap();
    for broken in [0, 1, READS - 1] {
        let wear = || store.broken.store(broken, Relaxed);
        wear();
        assert_eq!(root.get_whole(&path).await.unwrap(), "0123456789");
        wear();
        assert_eq!(root.get_range(&path, 2..6).await.unwrap(), "2345");
        wear();
        assert_eq!(root.get_ranges(&path, &[0..2, 7..9]).await.unwrap(), ["01", "78"]);
    }
    store.broken.store(READS, Relaxed);
    assert!(matches!(root.get_range(&path, 0..4).await, Err(object_store::Error::Generic { .. })));
    assert!(matches!(root.get_whole(&StorePath::from("none")).await, Err(object_store::Error::NotFound { .. })));
}
