//! Shards: Parquet files of one epoch, written once at their final name, read a row group at a time.
//!
//! Owns: how rows become row groups and files, what is read for a projection, the cache of footers. Must not know: which shards a version
//! has, who asks. Memory is bounded by a row group per writer and by the columns asked for per read.

mod encode;
mod footer;
mod name;
mod read;
mod stats;
mod upload;
mod write;

pub use name::{ShardName, shard_path};
pub use read::{footer, read_row_group, read_selected, read_unnamed};
pub use write::ShardWriter;

pub(crate) use footer::FooterCache;
pub(crate) use read::load_footer;
pub(crate) use upload::Upload;

/// What the work of a blocking thread means when the thread itself failed.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> forebay_core::Result<T> + Send + 'static,
) -> forebay_core::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) if e.is_cancelled() => Err(forebay_core::Error::new(forebay_core::Kind::Cancelled, "the process is stopping")),
        Err(e) => Err(forebay_core::Error::internal(format!("a blocking task failed: {e}"))),
    }
}

#[cfg(test)]
pub(crate) mod tests;
