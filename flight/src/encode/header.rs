//! The flatbuffer in front of a body.

use arrow::ipc::{MessageBuilder, MessageHeader, MetadataVersion, RecordBatchBuilder};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;

use super::body::Body;

/// The IPC message that describes `body` as a record batch of `rows` rows.
pub(crate) fn record_batch(rows: usize, body: &Body) -> Bytes {
    let mut fbb = FlatBufferBuilder::with_capacity(256 + 16 * (body.nodes.len() + body.buffers.len()));
    let buffers = fbb.create_vector(&body.buffers);
    let nodes = fbb.create_vector(&body.nodes);
    let batch = {
        let mut batch = RecordBatchBuilder::new(&mut fbb);
        batch.add_length(rows as i64);
        batch.add_nodes(nodes);
        batch.add_buffers(buffers);
        batch.finish().as_union_value()
    };
    let mut message = MessageBuilder::new(&mut fbb);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::RecordBatch);
    message.add_bodyLength(body.len() as i64);
    message.add_header(batch);
    let root = message.finish();
    fbb.finish(root, None);
    Bytes::copy_from_slice(fbb.finished_data())
}
