//! Scans as bytes between the processes of one root.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use datafusion::common::{DataFusionError, Result as DfResult, internal_datafusion_err, not_impl_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use forebay_core::ids::{DatasetName, VersionId};
use forebay_storage::root::Root;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::catalog::scan::{Group, Pinned, RowGroupScan};
use crate::guard::from_error;

/// Versions that are kept open between queries.
const KEPT: usize = 64;
/// Most row groups of one scan.
const MAX_GROUPS: usize = 4 << 20;

/// Writes scans, and reads them as scans of this process's own root.
#[derive(Debug)]
pub(super) struct ScanCodec {
    root: Root,
    kept: Mutex<VecDeque<Pinned>>,
}

/// A scan, but for its schema, which stands before it.
#[derive(Debug, Serialize, Deserialize)]
struct Wire {
    dataset: String,
    version: VersionId,
    table: String,
    partitions: Vec<Vec<Group>>,
    all: usize,
}

impl ScanCodec {
    pub(super) fn new(root: Root) -> Self {
        Self { root, kept: Mutex::default() }
    }

    /// The same version for every scan of it, so that it is opened once.
    fn pinned(&self, name: DatasetName, version: VersionId, table: String) -> Pinned {
        let mut kept = self.kept.lock();
        if let Some(found) = kept.iter().find(|p| p.version == version && p.name == name && p.table == table) {
            return found.clone();
        }
        let pinned = Pinned::new(name, version, table);
        kept.push_back(pinned.clone());
        if kept.len() > KEPT {
            kept.pop_front();
        }
        pinned
    }
}

fn schema_bytes(schema: &Schema) -> DfResult<Vec<u8>> {
    let mut bytes = Vec::new();
    StreamWriter::try_new(&mut bytes, schema)?.finish()?;
    Ok(bytes)
}

fn read_schema(bytes: &[u8]) -> DfResult<SchemaRef> {
    Ok(StreamReader::try_new(std::io::Cursor::new(bytes), None)?.schema())
}

fn broken(what: impl std::fmt::Display) -> DataFusionError {
    internal_datafusion_err!("a part of a query could not be read: {what}")
}

impl PhysicalExtensionCodec for ScanCodec {
    fn try_encode(&self, node: Arc<dyn ExecutionPlan>, buf: &mut Vec<u8>, _: &dyn PhysicalProtoConverterExtension) -> DfResult<()> {
        let Some(scan) = node.downcast_ref::<RowGroupScan>().filter(|scan| !scan.has_text()) else {
            return not_impl_err!("{} stays where it was planned", node.name());
        };
        let (partitions, all) = scan.parts();
        let pinned = scan.dataset();
        let wire = Wire {
            dataset: pinned.name.0.clone(),
            version: pinned.version,
            table: pinned.table.clone(),
            partitions: partitions.to_vec(),
            all,
        };
        let schema = schema_bytes(&scan.schema())?;
        let length = u32::try_from(schema.len()).map_err(broken)?;
        buf.extend_from_slice(&length.to_le_bytes());
        buf.extend_from_slice(&schema);
        serde_json::to_writer(buf, &wire).map_err(broken)
    }

    fn try_decode(
        &self,
        buf: &[u8],
        _: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let (length, rest) = buf.split_first_chunk::<4>().ok_or_else(|| broken("it is cut off"))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (schema, json) = rest.split_at_checked(length).ok_or_else(|| broken("it is cut off"))?;
        let wire: Wire = serde_json::from_slice(json).map_err(broken)?;
        if wire.partitions.iter().map(Vec::len).sum::<usize>() > MAX_GROUPS {
            return Err(broken("it names too many row groups"));
        }
        // A name that is checked: it becomes a folder of the root.
        let name = DatasetName::parse(&wire.dataset).map_err(from_error)?;
        let pinned = self.pinned(name, wire.version, wire.table);
        Ok(Arc::new(RowGroupScan::pinned(self.root.clone(), pinned, read_schema(schema)?, wire.partitions, wire.all)))
    }
}
