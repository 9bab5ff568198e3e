//! A bucket on an endpoint of the test's own, and homes whose root is in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_tests::s3::{Endpoint, Faults, Options};
use object_store::RetryConfig;
use object_store::aws::{AmazonS3, AmazonS3Builder};

use crate::support::Home;

pub const ACCESS: &str = "AKPLANTEDACCESS7Q";
pub const SECRET: &str = "planted+secret/key-Zq81";
pub const BUCKET: &str = "bucket";

/// An endpoint with one bucket.
pub struct Store {
    pub endpoint: Endpoint,
    folder: tempfile::TempDir,
}

impl Store {
    pub fn reliable() -> Self {
        Self::with(|options| options)
    }

    /// So many of a thousand requests fail, drawn by the seed.
    pub fn faulty(seed: u64, per_mille: u32) -> Self {
        Self::with(|options| Options { faults: Faults { seed, per_mille }, ..options })
    }

    pub fn with(change: impl FnOnce(Options) -> Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::start(change(Options::new(folder.path()).keys(ACCESS, SECRET))).unwrap();
        endpoint.bucket(BUCKET).unwrap();
        Self { endpoint, folder }
    }

    /// What a user sets, path-style.
    pub fn env(&self) -> Vec<(String, String)> {
        let url = self.endpoint.url();
        let set = [("AWS_ACCESS_KEY_ID", ACCESS), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "us-east-1"), ("AWS_ENDPOINT", &url)];
        set.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    pub fn home(&self) -> Home {
        let mut home = Home::new();
        (home.at, home.env) = (Some(format!("s3://{BUCKET}/root")), self.env());
        home
    }

    /// Where an object's bytes are.
    pub fn path(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }

    /// All objects below a key, with their bytes. What is deleted meanwhile is left out.
    pub fn objects(&self, key: &str) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        collect(&self.path(key), "", &mut found);
        found
    }

    /// A client without patience: it repeats nothing.
    pub fn client(&self, change: impl FnOnce(AmazonS3Builder) -> AmazonS3Builder) -> AmazonS3 {
        let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::from_secs(10), ..RetryConfig::default() };
        let builder = AmazonS3Builder::new()
            .with_endpoint(self.endpoint.url())
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(BUCKET)
            .with_access_key_id(ACCESS)
            .with_secret_access_key(SECRET)
            .with_retry(retry);
        change(builder).build().unwrap()
    }
}

fn collect(folder: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{name}/"), found);
        } else if let Ok(bytes) = std::fs::read(entry.path()) {
            found.insert(name, bytes);
        }
    }
}
