//! Rows that are written once, as an Arrow file, to be read from then on like any other source.

use arrow::array::RecordBatch;
use arrow::ipc::writer::FileWriter;
use forebay_core::{Error, Result};
use forebay_flight::backend::BatchSource;
use forebay_storage::root::{Root, io_error};
use futures::StreamExt;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use tokio::io::AsyncWriteExt;

/// Writes a stream to an object and tells its rows; `each` sees every batch in order. Memory: a batch and the parts of one upload. Nothing is
/// there before all of it is.
///
/// # Errors
/// Those of the stream and of the store.
pub(super) async fn stage(root: &Root, location: Path, mut source: BatchSource, mut each: impl FnMut(&RecordBatch) + Send) -> Result<u64> {
    let place = root.place(&location);
    let failed = |e: std::io::Error| io_error("stage rows", &place, &e);
    let mut out = BufWriter::new(root.store(), location);
    let written = async {
        let mut rows = 0;
        let encode = |e: arrow::error::ArrowError| Error::internal(format!("a batch could not be staged: {e}"));
        let mut writer = FileWriter::try_new(Vec::new(), &source.schema).map_err(encode)?;
        while let Some(batch) = source.batches.next().await {
            let batch = batch?;
            rows += batch.num_rows() as u64;
            each(&batch);
            writer.write(&batch).map_err(encode)?;
            // The writer counts its own offsets, so what it wrote can leave memory at once.
            out.write_all(&std::mem::take(writer.get_mut())).await.map_err(failed)?;
        }
        writer.finish().map_err(encode)?;
        out.write_all(writer.get_ref()).await.map_err(failed)?;
        out.shutdown().await.map_err(failed)?;
        Ok(rows)
    };
    let written: Result<u64> = written.await;
    if written.is_err()
        && let Err(error) = out.abort().await
    {
        tracing::debug!(%error, %place, "a broken upload could not be aborted");
    }
    written
}
