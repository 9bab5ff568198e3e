//! Rows to Parquet bytes: where row groups and shards end, and how each column is encoded. Synchronous; runs on a blocking thread.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use forebay_core::pipeline::{Compression, OutputSpec};
use forebay_core::shard::RowGroupMeta;
use forebay_core::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression as Codec, Encoding, ZstdLevel};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::sync::Arc;

use super::name::ShardName;
use super::stats::Stats;
use crate::types::{ID, StoredSchema, TENSOR_KEY, delta_schema_json, encode};

/// Below this a row group's own metadata outweighs its rows.
const ROW_GROUP_BYTES: u64 = 4 << 10;
/// Row offsets inside a row group are 32-bit, and a window's order is kept per row.
const ROW_GROUP_ROWS: usize = 1 << 20;
const STATISTICS_TRUNCATE: usize = 64;

/// The key of the Delta schema in a shard's own metadata, so that a file alone tells its logical types.
pub(super) const SCHEMA_KEY: &str = "forebay.schema";
/// The key of which rows a shard holds ([`ShardName::stem`]), so that a file that was put in another's place is noticed.
pub(super) const PLACE_KEY: &str = "forebay.place";

/// A file that was closed: everything but its name.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) row_groups: Vec<RowGroupMeta>,
    pub(super) stats: String,
    pub(super) size: u64,
}

/// What one step of encoding produced.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Rows taken from the batch.
    pub(super) rows: usize,
    /// Whether the batch has more of them.
    pub(super) more: bool,
    /// Bytes that follow the shard's earlier ones.
    pub(super) bytes: Vec<u8>,
    /// Set when these bytes are the shard's last.
    pub(super) closed: Option<Closed>,
}

pub(super) struct Encoder {
    schema: Arc<StoredSchema>,
    /// The shard that is open, or the next one.
    place: ShardName,
    properties: WriterProperties,
    row_group_bytes: u64,
    shard_bytes: u64,
    writer: Option<ArrowWriter<Vec<u8>>>,
    /// What is left of the batch that was given last, in stored form.
    pending: Option<RecordBatch>,
    /// Bytes and rows of the open row group.
    open_bytes: u64,
    open_rows: usize,
    stats: Stats,
}

impl Encoder {
    /// `first` names the first shard; each further one is its next part.
    pub(super) fn new(schema: StoredSchema, output: &OutputSpec, first: ShardName) -> Result<Self> {
        let properties = properties(&schema, output.compression)?;
        Ok(Self {
            place: first,
            properties,
            row_group_bytes: output.row_group_size.max(ROW_GROUP_BYTES),
            shard_bytes: output.shard_size.max(1),
            writer: None,
            pending: None,
            open_bytes: 0,
            open_rows: 0,
            stats: Stats::new(Arc::clone(&schema.stored)),
            schema: Arc::new(schema),
        })
    }

    /// Takes a batch and its first step. Sizes are measured in stored form: a view or a dictionary hides how large its values are.
    pub(super) fn start(&mut self, batch: &RecordBatch) -> Result<Step> {
        self.pending = Some(encode(batch, &self.schema)?);
        self.step()
    }

    /// Takes rows of the batch up to the end of the open row group.
    pub(super) fn step(&mut self) -> Result<Step> {
        let Some(batch) = self.pending.take().filter(|b| b.num_rows() > 0) else {
            return Ok(Step::default());
        };
        let (rows, bytes, full) = self.room(&batch);
        let taken = batch.slice(0, rows);
        self.stats.push(&taken);
        self.writer()?.write(&taken).map_err(|e| parquet_error(&e))?;
        self.open_bytes += bytes;
        self.open_rows += rows;
        let more = rows < batch.num_rows();
        if more {
            self.pending = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        let mut step = Step { rows, more, ..Step::default() };
        if full {
            self.end_row_group(&mut step)?;
        }
        Ok(step)
    }

    /// The rest of the open shard, if there is one.
    pub(super) fn finish(&mut self) -> Result<Step> {
        let mut step = Step::default();
        if self.writer.is_some() {
            self.close(&mut step)?;
        }
        Ok(step)
    }

    /// How many rows of a stored batch fit the open row group (at least one), their bytes, and whether it is full then. Sizes are of the
    /// slices themselves, so that one large row among small ones is seen; a search over them touches no row.
    fn room(&self, batch: &RecordBatch) -> (usize, u64, bool) {
        let row_limit = batch.num_rows().min(ROW_GROUP_ROWS.saturating_sub(self.open_rows)).max(1);
        let budget = self.row_group_bytes.saturating_sub(self.open_bytes);
        let whole = slice_bytes(batch, row_limit);
        if whole < budget {
            return (row_limit, whole, self.open_rows + row_limit >= ROW_GROUP_ROWS);
        }
        let (mut low, mut high) = (1, row_limit);
        while low < high {
            let middle = low + (high - low) / 2;
            if slice_bytes(batch, middle) >= budget {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        (low, slice_bytes(batch, low), true)
    }

    fn writer(&mut self) -> Result<&mut ArrowWriter<Vec<u8>>> {
        if self.writer.is_none() {
            // The Arrow schema goes into the footer too: other readers restore fixed sizes and metadata from it.
            let stored: SchemaRef = Arc::clone(&self.schema.stored);
            let writer = ArrowWriter::try_new(Vec::new(), stored, Some(self.properties.clone())).map_err(|e| parquet_error(&e))?;
            self.writer = Some(writer);
        }
        self.writer.as_mut().ok_or_else(|| Error::internal("no open shard"))
    }

    fn end_row_group(&mut self, step: &mut Step) -> Result<()> {
        self.open_bytes = 0;
        self.open_rows = 0;
        let limit = self.shard_bytes;
        let writer = self.writer()?;
        writer.flush().and_then(|()| writer.sync().map_err(Into::into)).map_err(|e| parquet_error(&e))?;
        if writer.bytes_written() as u64 >= limit {
            return self.close(step);
        }
        step.bytes = std::mem::take(writer.inner_mut());
        Ok(())
    }

    fn close(&mut self, step: &mut Step) -> Result<()> {
        self.open_bytes = 0;
        self.open_rows = 0;
        let Some(mut writer) = self.writer.take() else {
            return Ok(());
        };
        writer.append_key_value_metadata(KeyValue::new(PLACE_KEY.to_owned(), self.place.stem()));
        self.place.part += 1;
        let metadata = writer.finish().map_err(|e| parquet_error(&e))?;
        let size = writer.bytes_written() as u64;
        step.bytes = std::mem::take(writer.inner_mut());
        step.closed = Some(Closed { row_groups: row_groups(&metadata), stats: self.stats.take(), size });
        Ok(())
    }
}

/// Rows and stored uncompressed bytes of a file's row groups.
pub(super) fn row_groups(metadata: &ParquetMetaData) -> Vec<RowGroupMeta> {
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    metadata.row_groups().iter().map(|g| RowGroupMeta { rows: number(g.num_rows()), bytes: number(g.total_byte_size()) }).collect()
}

fn parquet_error(error: &dyn std::fmt::Display) -> Error {
    Error::internal(format!("rows can't be encoded as Parquet: {error}"))
}

fn slice_bytes(batch: &RecordBatch, rows: usize) -> u64 {
    // An array whose size can't be told counts as nothing; the row limit still ends the row group.
    batch.columns().iter().map(|c| c.slice(0, rows).to_data().get_slice_memory_size().unwrap_or(0) as u64).sum()
}

/// Dictionaries only where values may repeat: small scalars. On tensors, floats and blobs a dictionary is a megabyte of waste before it is
/// given up, and their least and greatest values are noise that makes footers heavy.
fn properties(schema: &StoredSchema, compression: Compression) -> Result<WriterProperties> {
    let codec = match compression {
        Compression::None => Codec::UNCOMPRESSED,
        Compression::Lz4 => Codec::LZ4_RAW,
        Compression::Zstd(level) => {
            let level = ZstdLevel::try_new(level)
                .map_err(|e| Error::bad_input(format!("zstd({level}): {e}")).with_remedy("use a level from 1 to 22"))?;
            Codec::ZSTD(level)
        }
    };
    let description = KeyValue::new(SCHEMA_KEY.to_owned(), delta_schema_json(schema)?);
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("forebay ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(codec)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_statistics_truncate_length(Some(STATISTICS_TRUNCATE))
        // Row groups end where this module ends them.
        .set_max_row_group_row_count(None)
        .set_key_value_metadata(Some(vec![description]));
    for field in schema.stored.fields() {
        let path = ColumnPath::new(vec![field.name().clone()]);
        let repeats = match field.data_type() {
            t if t.is_integer() || t.is_temporal() => true,
            DataType::Utf8 | DataType::LargeUtf8 => true,
            _ => false,
        };
        let small =
            repeats || field.data_type().is_floating() || matches!(field.data_type(), DataType::Boolean | DataType::Decimal128(_, _));
        if field.name() == ID {
            // Rows come in key order: differences of ids are small, and a dictionary of distinct values is none.
            builder = builder.set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED);
        } else if repeats {
            builder = builder.set_column_dictionary_enabled(path.clone(), true);
        }
        if small && !field.metadata().contains_key(TENSOR_KEY) {
            builder = builder.set_column_statistics_enabled(path, EnabledStatistics::Chunk);
        }
    }
    Ok(builder.build())
}
