//! The layout, what a damaged bundle says, and the cache.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt;
use std::path::Path as FsPath;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::Kind;
use forebay_core::ids::DatasetName;
use forebay_core::text::BundleMeta;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use proptest::prelude::*;

use super::*;
use crate::root::Root;
use crate::shard::shard_path;

/// Counts the reads that reach a store.
#[derive(Debug, Default)]
struct Counting {
    inner: InMemory,
    reads: AtomicUsize,
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counting")
    }
}

#[async_trait]
impl ObjectStore for Counting {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.inner.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(&self, at: &Path, options: PutMultipartOptions) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn name() -> DatasetName {
    DatasetName::parse("d").unwrap()
}

/// A bundle of the given files in a local file, with its description.
fn made(folder: &FsPath, files: &[(&str, Vec<u8>)], hot: &[(&str, std::ops::Range<u64>)]) -> (std::path::PathBuf, BundleMeta) {
    let file = folder.join(format!("bundle-{}", uuid::Uuid::new_v4()));
    let mut writer = BundleWriter::create(&file, serde_json::json!({"rows": 3})).unwrap();
    for (name, bytes) in files {
        let place = folder.join(name);
        std::fs::write(&place, bytes).unwrap();
        writer.add(name, &place).unwrap();
    }
    let hot = hot.iter().map(|(file, bytes)| HotRange { file: (*file).to_owned(), bytes: bytes.clone() }).collect();
    let (size, digest) = writer.finish(hot).unwrap();
    let path = format!("{BUNDLES}epoch=0/{}.idx", uuid::Uuid::new_v4().simple());
    (file, BundleMeta { path, size, digest, columns: Default::default() })
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Reads on a thread that may block.
async fn read(bundle: &Arc<Bundle>, file: &'static str, range: std::ops::Range<u64>) -> forebay_core::Result<Bytes> {
    let bundle = bundle.clone();
    tokio::task::spawn_blocking(move || bundle.read(file, range)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_costs_two_reads_and_hot_bytes_none() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Counting::default());
    let root = Root::over(store.clone());
    let (big, small) = (pattern(900_000, 1), pattern(100, 2));
    let (file, meta) =
        made(folder.path(), &[("big", big.clone()), ("small", small.clone())], &[("big", 100_000..400_000), ("small", 0..100)]);
    put_bundle(&root, &name(), &file, &meta).await.unwrap();
    store.reads.store(0, Ordering::SeqCst);
    let bundle = Arc::new(Bundle::open(&root, None, &name(), &meta).await.unwrap());
    assert_eq!(store.reads.load(Ordering::SeqCst), 2);
    assert_eq!(bundle.about()["rows"], 3);
    assert_eq!((bundle.length("big"), bundle.length("none")), (Some(900_000), None));
    assert_eq!(read(&bundle, "big", 200_000..200_010).await.unwrap(), big[200_000..200_010]);
    assert_eq!(read(&bundle, "small", 0..100).await.unwrap(), small);
    assert_eq!(store.reads.load(Ordering::SeqCst), 2);
    assert_eq!(read(&bundle, "big", 99_999..100_001).await.unwrap(), big[99_999..100_001]);
    assert_eq!(store.reads.load(Ordering::SeqCst), 3);
    assert!(read(&bundle, "big", 0..900_001).await.is_err());
    assert!(read(&bundle, "none", 0..1).await.is_err());
}

#[tokio::test]
async fn a_small_bundle_opens_with_one_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Counting::default());
    let root = Root::over(store.clone());
    let (file, meta) = made(folder.path(), &[("a", pattern(500, 1))], &[("a", 0..500)]);
    put_bundle(&root, &name(), &file, &meta).await.unwrap();
    store.reads.store(0, Ordering::SeqCst);
    Bundle::open(&root, None, &name(), &meta).await.unwrap();
    assert_eq!(store.reads.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_root_is_read_where_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path().join("root").to_str().unwrap(), true).await.unwrap();
    let (file, meta) = made(folder.path(), &[("a", pattern(200_000, 1))], &[("a", 0..10)]);
    put_bundle(&root, &name(), &file, &meta).await.unwrap();
    let bundle = Arc::new(Bundle::open(&root, None, &name(), &meta).await.unwrap());
    assert_eq!(read(&bundle, "a", 5..150_000).await.unwrap(), pattern(200_000, 1)[5..150_000]);
    let gone = BundleMeta { path: format!("{BUNDLES}epoch=0/none.idx"), ..meta };
    assert_eq!(Bundle::open(&root, None, &name(), &gone).await.unwrap_err().kind, Kind::NotFound);
}

#[tokio::test]
async fn damage_is_told_from_a_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let (file, meta) = made(folder.path(), &[("a", pattern(50_000, 1))], &[("a", 0..45_000)]);
    let whole = std::fs::read(&file).unwrap();
    let open = async |bytes: Vec<u8>| {
        let root = Root::over(Arc::new(InMemory::new()));
        let size = bytes.len() as u64;
        root.store().put(&shard_path(&name(), &meta.path), bytes.into()).await.unwrap();
        Bundle::open(&root, None, &name(), &BundleMeta { size, ..meta.clone() }).await.map(|_| ())
    };
    open(whole.clone()).await.unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    // The magic, the table's digest, its length, the table, the hot bytes.
    for at in [whole.len() - 1, whole.len() - 12, whole.len() - 32, whole.len() - 60, 60_000] {
        let error = open(flipped(at)).await.unwrap_err();
        assert!(matches!(error.kind, Kind::Corrupt | Kind::Unsupported), "{at}: {error}");
    }
    for length in [0, 10, 31, 32, 500] {
        assert_eq!(open(whole[..length].to_vec()).await.unwrap_err().kind, Kind::Corrupt, "{length}");
    }
    assert_eq!(open(b"a text that is long enough to hold a tail, and holds none".to_vec()).await.unwrap_err().kind, Kind::Corrupt);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_keeps_its_limit_and_drops_what_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Counting::default());
    let root = Root::over(store.clone());
    let cache = BundleCache::new(&folder.path().join("cache"), 250_000).unwrap();
    let mut metas = Vec::new();
    for seed in 0..3 {
        let (file, meta) = made(folder.path(), &[("a", pattern(100_000, seed))], &[("a", 0..10)]);
        put_bundle(&root, &name(), &file, &meta).await.unwrap();
        cache.fetch(&root, &shard_path(&name(), &meta.path), &meta).await.unwrap();
        metas.push(meta);
        // Last use is told apart by the files' times.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(cache.used() <= 250_000 && cache.used() > 200_000, "{}", cache.used());
    let reads = |store: &Counting| store.reads.load(Ordering::SeqCst);
    let before = reads(&store);
    let newest = Arc::new(Bundle::open(&root, Some(&cache), &name(), &metas[2]).await.unwrap());
    assert_eq!(read(&newest, "a", 0..100_000).await.unwrap(), pattern(100_000, 2));
    assert_eq!(reads(&store), before, "a cached bundle needs no store");
    // The oldest had to go.
    let copies = std::fs::read_dir(folder.path().join("cache/bundles")).unwrap().count();
    assert_eq!(copies, 2);
    // Half a copy, as a crash leaves it, and one with other bytes: both are dropped and the store answers.
    for entry in std::fs::read_dir(folder.path().join("cache/bundles")).unwrap() {
        let place = entry.unwrap().path();
        let bytes = std::fs::read(&place).unwrap();
        std::fs::write(&place, &bytes[..bytes.len() / 2]).unwrap();
    }
    let again = Arc::new(Bundle::open(&root, Some(&cache), &name(), &metas[2]).await.unwrap());
    assert_eq!(read(&again, "a", 0..100_000).await.unwrap(), pattern(100_000, 2));
    assert!(reads(&store) > before);
    // The reader that was open all the while still has its bytes.
    assert_eq!(read(&newest, "a", 0..5).await.unwrap(), pattern(100_000, 2)[0..5]);
}

#[tokio::test]
async fn a_cache_refuses_what_the_log_does_not_name() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::over(Arc::new(InMemory::new()));
    let cache = BundleCache::new(folder.path(), 1 << 20).unwrap();
    let (file, meta) = made(folder.path(), &[("a", pattern(1000, 1))], &[]);
    put_bundle(&root, &name(), &file, &meta).await.unwrap();
    let path = shard_path(&name(), &meta.path);
    let other = BundleMeta { digest: "0".repeat(32), ..meta.clone() };
    assert_eq!(cache.fetch(&root, &path, &other).await.unwrap_err().kind, Kind::Corrupt);
    assert_eq!(cache.used(), 0);
    let larger = BundleCache::new(folder.path(), 10).unwrap();
    larger.fetch(&root, &path, &meta).await.unwrap();
    assert_eq!(larger.used(), 0, "a bundle that is larger than the limit is left alone");
}

#[tokio::test]
async fn an_earlier_runs_bundle_is_inspected_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::over(Arc::new(InMemory::new()));
    let (file, meta) = made(folder.path(), &[("a", pattern(1000, 1))], &[("a", 0..100)]);
    assert_eq!(inspect(&root, &name(), &meta.path).await.unwrap(), None);
    put_bundle(&root, &name(), &file, &meta).await.unwrap();
    let (size, digest, about) = inspect(&root, &name(), &meta.path).await.unwrap().unwrap();
    assert_eq!((size, digest, about["rows"].as_u64()), (meta.size, meta.digest.clone(), Some(3)));
    let cut = std::fs::read(&file).unwrap();
    root.store().put(&shard_path(&name(), &meta.path), cut[..cut.len() - 1].to_vec().into()).await.unwrap();
    assert_eq!(inspect(&root, &name(), &meta.path).await.unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is hot, and however large the files are, every byte reads back.
    #[test]
    fn every_byte_reads_back(
        lengths in prop::collection::vec(0usize..60_000, 1..4),
        hot in prop::collection::vec((0usize..4, 0.0f64..1.0, 0.0f64..1.0), 0..6),
        reads in prop::collection::vec((0usize..4, 0.0f64..1.0, 0.0f64..1.0), 1..6),
    ) {
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let root = Root::over(Arc::new(InMemory::new()));
            let files: Vec<(&str, Vec<u8>)> = lengths.iter().enumerate().map(|(i, l)| (NAMES[i], pattern(*l, i as u8))).collect();
            let range = |(file, a, b): &(usize, f64, f64)| {
                let (name, bytes) = &files[file % files.len()];
                let (a, b) = ((a * bytes.len() as f64) as u64, (b * bytes.len() as f64) as u64);
                (*name, a.min(b)..a.max(b))
            };
            let hot: Vec<_> = hot.iter().map(range).collect();
            let (file, meta) = made(folder.path(), &files, &hot);
            put_bundle(&root, &name(), &file, &meta).await.unwrap();
            let bundle = Arc::new(Bundle::open(&root, None, &name(), &meta).await.unwrap());
            for (file, bytes) in reads.iter().chain([&(0, 0.0, 1.0)]).map(range) {
                let expected = &files.iter().find(|(n, _)| *n == file).unwrap().1[bytes.start as usize..bytes.end as usize];
                assert_eq!(read(&bundle, file, bytes).await.unwrap(), expected);
            }
        });
    }
}
