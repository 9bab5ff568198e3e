//! Building a shard's index: its text columns are read back from the shard, indexed on local disk within a memory budget, and put beside it as a
//! bundle.
//!
//! The same code runs in a task of materialization and for epochs that exist. Nothing that it writes is visible before a commit names the bundle.

use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use forebay_core::ids::DatasetName;
use forebay_core::shard::ShardMeta;
use forebay_core::text::{BundleMeta, TextColumns};
use forebay_core::{Error, Kind, Result};
use forebay_storage::bundle::{self, BundleWriter, bundle_name, put_bundle};
use forebay_storage::root::Root;
use forebay_storage::shard::read_unnamed;
use forebay_storage::types::{PART as PART_COLUMN, StoredSchema};
use tantivy::directory::MmapDirectory;
use tantivy::indexer::{SingleSegmentIndexWriter, merge_indices};
use tantivy::schema::{Field, Schema};
use tantivy::store::Compressor;
use tantivy::tokenizer::TokenizerManager;
use tantivy::{Index, IndexSettings, TantivyDocument};
use tempfile::TempDir;

use super::directory::{RecordingDirectory, files};
use super::index::{ABSENT, About, FORMAT, ID, PART, ShardIndex, failed, field_name, schema};
use super::rows::text;
use super::tokenize::analyzer;

/// Bytes that one shard's index may hold while it is built; what is more goes to local disk and is merged at the end.
pub const MEMORY_BUDGET: usize = 64 << 20;
/// Rows between two looks at the memory in use.
const CHECKED: usize = 256;
/// The key column.
const ID_COLUMN: &str = "_id";

/// What is indexed, and where.
#[derive(Debug, Clone)]
pub struct BuildRequest<'a> {
    pub root: &'a Root,
    pub name: &'a DatasetName,
    pub stored: &'a StoredSchema,
    pub columns: &'a TextColumns,
    /// Bytes; see [`MEMORY_BUDGET`].
    pub memory: usize,
    /// Distinguishes a bundle that is built again from the one that is in use; empty otherwise.
    pub variant: &'a str,
}

impl BuildRequest<'_> {
    /// Indexes one shard. A whole bundle of the same shard and columns that an earlier run left is taken as it is. `go_on` is asked between row
    /// groups.
    ///
    /// # Errors
    /// `Cancelled` when `go_on` says no; what the store, the local disk and the shard say.
    pub async fn shard(&self, shard: &ShardMeta, go_on: impl Fn() -> bool + Send + Sync) -> Result<BundleMeta> {
        let name = bundle_name(shard, self.columns, &format!("{FORMAT}{}", self.variant));
        let about = self.about(shard);
        let said = serde_json::to_value(&about).map_err(|e| Error::internal(e.to_string()))?;
        if let Some((size, digest, found)) = bundle::inspect(self.root, self.name, &name).await?
            && found == said
        {
            return Ok(BundleMeta { path: name, size, digest, columns: self.columns.clone() });
        }
        let mut builder = Some(
            blocking({
                let (about, memory) = (about.clone(), self.memory);
                move || Builder::new(about, memory)
            })
            .await?,
        );
        let mut wanted: Vec<String> = vec![ID_COLUMN.to_owned()];
        wanted.extend(about.part.then(|| PART_COLUMN.to_owned()));
        wanted.extend(self.columns.keys().cloned());
        for row_group in 0..shard.row_groups.len() {
            if !go_on() {
                return Err(Error::new(Kind::Cancelled, "indexing was stopped"));
            }
            let batches = read_unnamed(self.root, self.name, self.stored, shard, row_group, &wanted).await?;
            let mut building = builder.take().ok_or_else(|| Error::internal("an index without its builder"))?;
            builder = Some(
                blocking(move || {
                    batches.iter().try_for_each(|batch| building.add(batch))?;
                    Ok(building)
                })
                .await?,
            );
        }
        let building = builder.take().ok_or_else(|| Error::internal("an index without its builder"))?;
        let built = blocking(move || building.finish(said)).await?;
        let meta = BundleMeta { path: name, size: built.size, digest: built.digest.clone(), columns: self.columns.clone() };
        put_bundle(self.root, self.name, &built.file, &meta).await?;
        // The folder goes with `built`, on a thread that may block.
        blocking(move || {
            drop(built);
            Ok(())
        })
        .await?;
        Ok(meta)
    }

    fn about(&self, shard: &ShardMeta) -> About {
        About {
            format: FORMAT.to_owned(),
            shard: shard.path.clone(),
            shard_size: shard.size,
            rows: shard.rows(),
            part: self.stored.index_of(PART_COLUMN).is_some(),
            columns: self.columns.clone(),
        }
    }
}

/// Work on a thread that may block: of the runtime that calls, which for a task is the worker's own.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) if e.is_cancelled() => Err(Error::new(Kind::Cancelled, "the process is stopping")),
        Err(e) => Err(Error::internal(format!("a blocking task failed: {e}"))),
    }
}

/// An index on its way: pieces that are on disk, and one in memory.
pub(super) struct Builder {
    folder: TempDir,
    schema: Schema,
    fields: Vec<Field>,
    about: About,
    memory: usize,
    pieces: Vec<Index>,
    open: Option<SingleSegmentIndexWriter>,
}

/// A finished bundle in its own folder.
pub(super) struct Built {
    _folder: TempDir,
    pub(super) file: PathBuf,
    size: u64,
    digest: String,
}

fn disk(error: &std::io::Error) -> Error {
    forebay_storage::root::io_error("index on", &std::env::temp_dir().display().to_string(), error)
}

impl Builder {
    pub(super) fn new(about: About, memory: usize) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("forebay-index-").tempdir().map_err(|e| disk(&e))?;
        let schema = schema(&about.columns, about.part);
        let fields = (0..about.columns.len()).map(|i| schema.get_field(&field_name(i)).map_err(failed)).collect::<Result<_>>()?;
        Ok(Self { folder, schema, fields, about, memory, pieces: Vec::new(), open: None })
    }

    fn directory(&self, name: &str) -> Result<(PathBuf, MmapDirectory)> {
        let path = self.folder.path().join(name);
        std::fs::create_dir(&path).map_err(|e| disk(&e))?;
        let directory = MmapDirectory::open(&path).map_err(|e| failed(e.into()))?;
        Ok((path, directory))
    }

    fn piece(&mut self) -> Result<SingleSegmentIndexWriter> {
        if let Some(open) = self.open.take() {
            return Ok(open);
        }
        let (_, directory) = self.directory(&format!("piece-{}", self.pieces.len()))?;
        // The default one is asked for by fields that have no text.
        let tokenizers = TokenizerManager::default();
        for tokenizer in self.about.columns.values() {
            tokenizers.register(&tokenizer.to_string(), analyzer(*tokenizer));
        }
        // No document is stored: the rows are in the shard.
        let settings = IndexSettings { docstore_compression: Compressor::None, ..IndexSettings::default() };
        let builder = Index::builder().schema(self.schema.clone()).settings(settings).tokenizers(tokenizers);
        builder.single_segment_index_writer(directory, self.memory.max(16 << 20)).map_err(failed)
    }

    /// Adds rows: `_id`, `_part` where there is one, and the text columns.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| Error::internal(format!("rows without `{name}`")));
        let ids = column(ID_COLUMN)?.as_primitive_opt::<Int64Type>().ok_or_else(|| Error::internal("`_id` is no 64-bit integer"))?.clone();
        let parts = match self.about.part {
            true => Some(
                column(PART_COLUMN)?
                    .as_primitive_opt::<Int32Type>()
                    .ok_or_else(|| Error::internal("`_part` is no 32-bit integer"))?
                    .clone(),
            ),
            false => None,
        };
        let texts: Vec<ArrayRef> = self.about.columns.keys().map(|name| text(column(name)?)).collect::<Result<_>>()?;
        let field = |name: &str| self.schema.get_field(name).map_err(failed);
        let (absent, id) = (field(ABSENT)?, field(ID)?);
        let part = if parts.is_some() { Some(field(PART)?) } else { None };
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let mut open = self.piece()?;
        for row in 0..batch.num_rows() {
            let mut document = TantivyDocument::new();
            document.add_i64(id, ids.value(row));
            if let (Some(part), Some(parts)) = (part, &parts) {
                document.add_i64(part, i64::from(parts.value(row)));
            }
            for (number, (text, field)) in texts.iter().zip(&self.fields).enumerate() {
                let text = text.as_string::<i32>();
                if text.is_valid(row) {
                    document.add_text(*field, text.value(row));
                } else {
                    document.add_u64(absent, number as u64);
                }
            }
            open.add_document(document).map_err(failed)?;
            let last = row + 1 == batch.num_rows();
            if (last || (row + 1) % CHECKED == 0) && open.mem_usage() > self.memory {
                self.pieces.push(open.finalize().map_err(failed)?);
                if last {
                    return Ok(());
                }
                open = self.piece()?;
            }
        }
        self.open = Some(open);
        Ok(())
    }

    /// Merges the pieces, in their order, into one segment.
    fn merge(&mut self) -> Result<PathBuf> {
        if self.pieces.is_empty() {
            self.piece()?.finalize().map_err(failed)?;
            return Ok(self.folder.path().join("piece-0"));
        }
        if let Some(open) = self.open.take() {
            self.pieces.push(open.finalize().map_err(failed)?);
        }
        let (path, directory) = self.directory("whole")?;
        merge_indices(&self.pieces, directory).map_err(failed)?;
        self.pieces.clear();
        Ok(path)
    }

    /// The finished index in its folder, for tests that need no bundle.
    #[cfg(test)]
    pub(super) fn whole(mut self) -> Result<(TempDir, PathBuf)> {
        let path = self.merge()?;
        Ok((self.folder, path))
    }

    /// Ends the index and puts it into a bundle file.
    pub(super) fn finish(mut self, said: serde_json::Value) -> Result<Built> {
        let path = self.merge()?;
        let hot = touched(&path, &self.about)?;
        let file = self.folder.path().join("bundle");
        let mut writer = BundleWriter::create(&file, said)?;
        for (name, path) in files(&path).map_err(|e| disk(&e))? {
            writer.add(&name, &path)?;
        }
        let (size, digest) = writer.finish(hot)?;
        Ok(Built { _folder: self.folder, file, size, digest })
    }
}

/// The bytes that opening an index touches: it is opened once, exactly as queries do it.
fn touched(path: &Path, about: &About) -> Result<Vec<bundle::HotRange>> {
    let directory = RecordingDirectory::new(MmapDirectory::open(path).map_err(|e| failed(e.into()))?);
    let index = Index::open(directory.clone()).map_err(failed)?;
    ShardIndex::of(index, about, 0)?;
    Ok(directory.touched())
}
