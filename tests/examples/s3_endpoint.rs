//! The tests' S3 endpoint as a program, for tests whose servers run in containers.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use forebay_tests::s3::{Endpoint, Faults, Options};

/// An S3 endpoint over a folder, for tests: conditional writes are atomic, nothing is durable
#[derive(Debug, Parser)]
struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Folder of the buckets
    #[arg(long)]
    folder: PathBuf,
    /// Buckets to make
    #[arg(long)]
    bucket: Vec<String>,
    /// Serves `BUCKET.DOMAIN` too
    #[arg(long)]
    domain: Option<String>,
    #[arg(long, env = "AWS_ACCESS_KEY_ID")]
    access_key: String,
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true)]
    secret_key: String,
    /// Faults of a thousand requests
    #[arg(long, default_value_t = 0)]
    faults: u32,
    /// Which requests those are
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    std::fs::create_dir_all(&args.folder)?;
    let mut options = Options::new(args.folder).keys(&args.access_key, &args.secret_key);
    (options.listen, options.domain) = (args.listen, args.domain);
    options.faults = Faults { seed: args.seed, per_mille: args.faults };
    let endpoint = Endpoint::start(options)?;
    for bucket in &args.bucket {
        endpoint.bucket(bucket)?;
    }
    println!("{}", endpoint.url());
    endpoint.wait()
}
