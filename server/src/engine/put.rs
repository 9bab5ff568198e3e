//! `DoPut`: a client's own stream becomes a dataset.
//!
//! The stream is staged once, as an Arrow file under the dataset's private folder, and then materialized like any other source: the same
//! tasks, journal and commit, so that a client that vanishes in the middle leaves nothing behind.

use forebay_core::ids::DatasetName;
use forebay_core::pipeline::{Compression, EpochsSpec, IndexSpec, OnError, OutputSpec, PipelineSpec, Shuffle, SourceFormat, SourceSpec};
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::MaterializeRequest;
use forebay_flight::backend::BatchSource;
use forebay_storage::types;
use object_store::path::Path;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Engine;
use super::prepare::property;
use super::stage::stage;
use crate::dispatcher::RunState;

/// What to do with a dataset that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Create,
    Append,
    Replace,
}

impl Mode {
    fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("create") => Ok(Self::Create),
            Some("append") => Ok(Self::Append),
            Some("replace") => Ok(Self::Replace),
            Some(other) => {
                Err(Error::bad_input(format!("mode `{other}` is not known"))
                    .with_remedy("use append or replace, or no mode for a new dataset"))
            }
        }
    }
}

/// Writers of one dataset take turns, from the look at what it consists of to the commit that names that and the new rows: else the last of two
/// that append at once would leave the other's rows out.
#[derive(Debug, Default)]
pub(super) struct Puts(parking_lot::Mutex<BTreeMap<DatasetName, Arc<tokio::sync::Mutex<()>>>>);

impl Puts {
    async fn turn(&self, name: &DatasetName) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock();
            // Whoever has or awaits a turn holds its lock too.
            all.retain(|_, lock| Arc::strong_count(lock) > 1);
            all.entry(name.clone()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

impl Engine {
    /// Stages the stream, then materializes it; answers with the version that holds the rows.
    pub(crate) async fn put(&self, path: &[String], mode: Option<&str>, source: BatchSource) -> Result<Value> {
        let [name] = path else {
            return Err(Error::bad_input("a put names one dataset").with_remedy("use a descriptor path of one element"));
        };
        let name = DatasetName::parse(name)?;
        let mode = Mode::parse(mode)?;
        // Refused before any row travels.
        let _held = self.hold_dataset(&name).await?;
        let before = self.files_before(&name, mode).await?;
        // Refused columns are an error before any row travels.
        types::to_stored(&source.schema)?;
        let file = format!("{:06}-{}.arrow", before.len(), uuid::Uuid::new_v4().simple());
        let location = Path::from(format!("{}/{file}", Self::put_folder(&name)));
        let rows = stage(self.root(), location, source, |_| {}).await?;
        let done = async {
            let _turn = self.puts.turn(&name).await;
            // Another writer may have been faster: its rows stay, or this one is refused as it would have been before.
            let mut files = self.files_before(&name, mode).await?;
            files.push(file.clone());
            self.materialize_put(&name, files, mode).await
        };
        let done = done.await;
        if done.is_err() {
            self.unstage(&name, &file).await;
        }
        Ok(json!({ "dataset": name, "version": done?, "rows": rows }))
    }

    /// The staged files that the dataset already consists of.
    async fn files_before(&self, name: &DatasetName, mode: Mode) -> Result<Vec<String>> {
        let version = match self.view().version(name, None).await {
            Ok(version) => version,
            Err(e) if e.kind == Kind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let spec: Option<PipelineSpec> = version.properties.get(property::PIPELINE).and_then(|text| serde_json::from_str(text).ok());
        let written = spec.is_some_and(|s| s.source.format == SourceFormat::Put);
        match mode {
            Mode::Create => Err(Error::new(Kind::AlreadyExists, format!("dataset `{name}` exists"))
                .with_remedy("write with mode=\"append\" or mode=\"replace\", or choose another name")),
            Mode::Append if !written => {
                Err(Error::failed_precondition(format!("dataset `{name}` was made by a pipeline, rows can't be appended to it"))
                    .with_remedy("write to another name, or use mode=\"replace\""))
            }
            Mode::Replace => Ok(Vec::new()),
            Mode::Append => Ok(spec_files(&version.properties)),
        }
    }

    fn put_folder(name: &DatasetName) -> String {
        format!("datasets/{name}/_forebay/put")
    }

    async fn unstage(&self, name: &DatasetName, file: &str) {
        let gone =
            forebay_storage::artifact::delete(self.root(), forebay_storage::artifact::Of::Dataset(name), &format!("put/{file}")).await;
        if let Err(error) = gone {
            tracing::warn!(%error, dataset = %name, "a refused put's file could not be removed");
        }
    }

    async fn materialize_put(&self, name: &DatasetName, files: Vec<String>, mode: Mode) -> Result<u64> {
        let base = format!("{}/{}", self.root().url().trim_end_matches('/'), Self::put_folder(name));
        let spec = put_spec(name, files);
        let canonical = spec.canonical();
        let request = MaterializeRequest {
            pipeline: String::new(),
            file: String::new(),
            base,
            set: Vec::new(),
            modules: Default::default(),
            epochs: None,
            wait: true,
            resume: false,
            replace: mode != Mode::Create,
        };
        let prepared = self.prepare_spec(spec, &canonical, &request).await?;
        let status = self.run_to_end(prepared).await?;
        match (status.state, status.error, status.version) {
            (RunState::Done | RunState::AlreadyMaterialized, _, Some(version)) => Ok(version.0),
            (_, Some(error), _) => Err(error),
            (state, ..) => Err(Error::internal(format!("the written rows of `{name}` were not published: {state:?}"))),
        }
    }
}

fn spec_files(properties: &BTreeMap<String, String>) -> Vec<String> {
    let spec: Option<PipelineSpec> = properties.get(property::PIPELINE).and_then(|text| serde_json::from_str(text).ok());
    spec.map(|s| s.source.uri).unwrap_or_default()
}

/// The pipeline that a put stands for: its staged files, no steps, one epoch.
fn put_spec(name: &DatasetName, files: Vec<String>) -> PipelineSpec {
    PipelineSpec {
        name: name.clone(),
        description: "written by a client".to_owned(),
        source: SourceSpec { uri: files, format: SourceFormat::Put, options: Default::default(), sql: None },
        steps: Vec::new(),
        epochs: EpochsSpec { count: 1, seed: 0, shuffle: Shuffle::Window },
        output: OutputSpec {
            cut: 0,
            shard_size: 128 << 20,
            row_group_size: 8 << 20,
            compression: Compression::Zstd(1),
            on_error: OnError::Fail,
        },
        index: IndexSpec::default(),
        split: None,
    }
}
