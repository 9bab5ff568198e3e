//! One `FlightData` on its way out: the parts, and their gRPC and protobuf framing.
//!
//! The framing is written by hand so that a body of megabytes is handed to HTTP/2 as it stands: prost would copy it into its own buffer first.

use arrow_flight::{FlightData, FlightDescriptor};
use bytes::{BufMut, Bytes, BytesMut};
use forebay_core::{Error, Kind, Result};

/// Protobuf ends at 2 GiB, whatever the limits of either side.
pub const MAX_MESSAGE: usize = i32::MAX as usize;

/// The body's place within the message; see [`Message::padding`].
const ALIGN: usize = 64;

/// Field numbers of `FlightData` with wire type 2.
const HEADER_TAG: u64 = 2 << 3 | 2;
const METADATA_TAG: u64 = 3 << 3 | 2;
const BODY_TAG: u64 = 1000 << 3 | 2;

/// A message of a stream: IPC header (a flatbuffer), `app_metadata`, IPC body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    pub header: Bytes,
    pub app_metadata: Bytes,
    pub body: Bytes,
    /// What follows the body's first part: rows that are large enough to be sent from where they lie.
    pub more: Vec<Bytes>,
}

impl Message {
    /// A message without data, as those that end a stream.
    pub fn metadata(app_metadata: impl Into<Bytes>) -> Self {
        Self { app_metadata: app_metadata.into(), ..Self::default() }
    }

    /// Bytes that the message occupies in memory.
    pub fn len(&self) -> usize {
        self.header.len() + self.app_metadata.len() + self.body_len()
    }

    /// Bytes of the whole body.
    pub fn body_len(&self) -> usize {
        self.body.len() + self.more.iter().map(Bytes::len).sum::<usize>()
    }

    /// The whole body in one piece; copies where it is in several.
    pub fn whole_body(&self) -> Bytes {
        if self.more.is_empty() {
            return self.body.clone();
        }
        let mut whole = BytesMut::with_capacity(self.body_len());
        whole.put_slice(&self.body);
        self.more.iter().for_each(|part| whole.put_slice(part));
        whole.freeze()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Zeroes to put behind the header, so that the body starts at a multiple of [`ALIGN`] within the gRPC message.
    ///
    /// Clients put a message into memory of their allocator's alignment and read the body where it lies: without this, the arrays of a
    /// pyarrow client start at odd addresses. IPC headers may end in zeroes.
    fn padding(&self) -> usize {
        let body_len = self.body_len();
        if body_len == 0 || self.header.is_empty() {
            return 0;
        }
        let before = |pad: usize| {
            let body = varint_len(BODY_TAG) + varint_len(body_len as u64);
            field(HEADER_TAG, self.header.len() + pad) + field(METADATA_TAG, self.app_metadata.len()) + body
        };
        // The padding may lengthen the length before it, so it is tried rather than calculated.
        (0..2 * ALIGN).find(|&pad| before(pad).is_multiple_of(ALIGN)).unwrap_or(0)
    }

    /// Everything of the gRPC message that stands before the body's bytes; the body follows as it is.
    ///
    /// # Errors
    /// `ResourceExhausted` over 2 GiB.
    pub fn prefix(&self) -> Result<Bytes> {
        let (pad, body_len) = (self.padding(), self.body_len());
        let total = field(HEADER_TAG, self.header.len() + pad) + field(METADATA_TAG, self.app_metadata.len()) + field(BODY_TAG, body_len);
        if total > MAX_MESSAGE {
            return Err(too_large(total));
        }
        let mut out = BytesMut::with_capacity(5 + total - body_len);
        out.put_u8(0);
        out.put_u32(u32::try_from(total).unwrap_or(u32::MAX));
        for (tag, bytes, pad) in [(HEADER_TAG, &self.header, pad), (METADATA_TAG, &self.app_metadata, 0)] {
            if !bytes.is_empty() {
                put_varint(&mut out, tag);
                put_varint(&mut out, (bytes.len() + pad) as u64);
                out.put_slice(bytes);
                out.put_bytes(0, pad);
            }
        }
        if body_len > 0 {
            put_varint(&mut out, BODY_TAG);
            put_varint(&mut out, body_len as u64);
        }
        Ok(out.freeze())
    }

    /// The same message for tonic's generated client.
    pub fn into_flight_data(self, descriptor: Option<FlightDescriptor>) -> FlightData {
        FlightData {
            flight_descriptor: descriptor,
            data_body: self.whole_body(),
            data_header: self.header,
            app_metadata: self.app_metadata,
        }
    }
}

/// A message of so many bytes can't be.
pub(crate) fn too_large(bytes: usize) -> Error {
    Error::new(Kind::ResourceExhausted, format!("one message of {bytes} bytes; gRPC ends at {MAX_MESSAGE}"))
        .with_remedy("a single row must stay below 2 GiB: select fewer columns")
}

/// Bytes of a field with its tag and length; absent when empty.
fn field(tag: u64, len: usize) -> usize {
    if len == 0 { 0 } else { varint_len(tag) + varint_len(len as u64) + len }
}

fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use prost::Message as _;

    #[test]
    fn framing_is_what_prost_reads() {
        for (header, metadata, body) in
            [(0, 0, 0), (1, 0, 0), (0, 5, 0), (300, 200, 70_000), (0, 0, 1), (127, 128, 16_384), (64, 0, 9), (126, 1, 1)]
        {
            let message = Message {
                header: vec![1; header].into(),
                app_metadata: vec![2; metadata].into(),
                body: vec![3; body].into(),
                ..Message::default()
            };
            let mut wire = BytesMut::from(&message.prefix().unwrap()[..]);
            let before = wire.len() - 5;
            wire.put_slice(&message.body);
            let len = u32::from_be_bytes(wire[1..5].try_into().unwrap()) as usize;
            assert_eq!((wire[0], len), (0, wire.len() - 5));
            let mut read = FlightData::decode(&wire[5..]).unwrap();
            if header > 0 && body > 0 {
                assert_eq!(before % ALIGN, 0);
                let padding = read.data_header.split_off(header);
                assert!(padding.len() < 2 * ALIGN && padding.iter().all(|&b| b == 0));
            }
            assert_eq!(read, message.into_flight_data(None));
        }
    }
}
