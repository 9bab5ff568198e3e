#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use arrow::array::{FixedSizeListArray, Int64Array, UInt8Array};
use std::sync::Mutex;

use super::*;

/// A sink that outlives its writer.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn batch() -> RecordBatch {
    let image = forebay_storage::types::tensor_field("image", &DataType::UInt8, &[2, 2]);
    let DataType::FixedSizeList(item, size) = image.data_type().clone() else { panic!("{image:?}") };
    let values = UInt8Array::from_iter_values(0..8);
    let images = FixedSizeListArray::new(item, size, Arc::new(values), None);
    let fields = vec![
        Field::new("n", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("raw", DataType::Binary, true),
        image,
    ];
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![Some(1), None])),
        Arc::new(StringArray::from(vec![Some("a,b"), Some("c")])),
        Arc::new(BinaryArray::from_opt_vec(vec![Some(&[255u8, 0, 1][..]), None])),
        Arc::new(images),
    ];
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn written(format: Format, batches: &[RecordBatch]) -> Vec<u8> {
    let sink = Shared::default();
    let mut writer = Writer::new(format, sink.clone(), true).unwrap();
    writer.start(&batch().schema()).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
    sink.0.lock().unwrap().clone()
}

fn text(format: Format, batches: &[RecordBatch]) -> String {
    String::from_utf8(written(format, batches)).unwrap()
}

#[test]
fn json_has_a_row_per_line_and_nulls() {
    let both = text(Format::Json, &[batch(), batch()]);
    let lines: Vec<serde_json::Value> = both.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["n"], 1);
    assert_eq!(lines[0]["image"], serde_json::json!([0, 1, 2, 3]));
    assert!(lines[1]["n"].is_null() && lines[1].as_object().unwrap().contains_key("n"));
    assert_eq!(text(Format::Json, &[]), "");
}

#[test]
fn csv_has_one_head_and_quotes() {
    let both = text(Format::Csv, &[batch(), batch()]);
    assert_eq!(both.lines().count(), 5);
    assert_eq!(both.lines().next().unwrap(), "n,name,raw,image");
    assert_eq!(both.lines().nth(1).unwrap(), "1,\"a,b\",ff0001,\"[0, 1, 2, 3]\"");
    assert_eq!(text(Format::Csv, &[]), "n,name,raw,image\n");
}

#[test]
fn tables_show_what_a_value_is_where_it_is_long() {
    let table = text(Format::Table, &[batch()]);
    assert!(table.contains("| uint8[2,2]") && table.contains("| 3 bytes"), "{table}");
    assert!(text(Format::Table, &[]).contains("| n | name | raw | image |"));
}

#[test]
fn parquet_and_arrow_read_back() {
    let bytes = bytes::Bytes::from(written(Format::Parquet, &[batch()]));
    let mut reader = parquet::arrow::arrow_reader::ParquetRecordBatchReader::try_new(bytes, 1024).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().columns(), batch().columns());
    let file = std::io::Cursor::new(written(Format::Arrow, &[batch()]));
    let mut reader = arrow::ipc::reader::FileReader::try_new(file, None).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), batch());
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }
    for format in [Format::Table, Format::Csv, Format::Json] {
        let mut writer = Writer::new(format, Closed, false).unwrap();
        writer.start(&batch().schema()).unwrap();
        let ended = writer.write(&batch()).and_then(|()| writer.finish());
        assert!(matches!(ended, Err(Failure::Pipe)), "{format}: {ended:?}");
    }
}

#[test]
fn names_tell_formats() {
    assert_eq!(Format::of(Path::new("a/b.PARQUET")), Some(Format::Parquet));
    assert_eq!(Format::of(Path::new("x.jsonl")), Some(Format::Json));
    assert_eq!(Format::of(Path::new("x")), None);
}
