//! Datasets, queries, puts and actions.

use crate::Running;
use crate::backend::{Double, chunk};
use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Int64Type};
use arrow_flight::{Criteria, FlightDescriptor};
use forebay_core::{Error, Kind};
use forebay_flight::decode::schema_from_info;
use forebay_flight::encode::to_wire;
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};

fn path(parts: &[&str]) -> FlightDescriptor {
    FlightDescriptor::new_path(parts.iter().map(|p| (*p).to_owned()).collect())
}

#[tokio::test]
async fn a_dataset_reads_by_path_and_keeps_its_schema() {
    let server = Running::open(Double::new(50, 12, 10)).await;
    let client = server.client().await;
    let info = client.flight_info(path(&["digits@v3", "epoch=0"])).await.unwrap_err();
    assert_eq!((info.kind, info.remedy.as_deref()), (Kind::NotFound, Some("see `forebay datasets`")));

    let info = client.flight_info(path(&["digits"])).await.unwrap();
    assert_eq!((info.endpoint.len(), info.total_records, info.ordered), (2, 100, true));
    assert!(info.endpoint.iter().all(|e| e.location.is_empty() && e.expiration_time.is_some()));
    let promised = schema_from_info(&info.schema).unwrap();
    assert_eq!(promised.field(1).data_type(), &DataType::Utf8);

    let rows = client.read_info(info).await.unwrap().collect().await.unwrap();
    assert!(rows.iter().all(|batch| *batch.schema() == promised));
    let wire = rows[0].schema();
    let expected: Vec<RecordBatch> = server.double.chunks.iter().map(|c| to_wire(c, &wire).unwrap()).collect();
    assert_eq!(concat_batches(&wire, &rows).unwrap(), concat_batches(&wire, &expected).unwrap());

    let raw = server.raw().await.get_schema(path(&["digits"])).await.unwrap().into_inner();
    assert_eq!(schema_from_info(&raw.schema).unwrap(), promised);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn flights_are_listed_by_prefix() {
    let server = Running::open(Double::new(5, 4, 5)).await;
    let client = server.client().await;
    let names = |flights: Vec<arrow_flight::FlightInfo>| -> Vec<String> {
        flights.into_iter().flat_map(|f| f.flight_descriptor.unwrap().path).collect()
    };
    assert_eq!(names(client.flights("").await.unwrap()), ["digits", "words"]);
    assert_eq!(names(client.flights("wo").await.unwrap()), ["words"]);
    let raw = server.raw().await.list_flights(Criteria { expression: "x".into() }).await.unwrap().into_inner();
    assert_eq!(raw.count().await, 0);
}

#[tokio::test]
async fn descriptors_that_name_nothing_are_refused() {
    let server = Running::open(Double::new(5, 4, 5)).await;
    let client = server.client().await;
    let bad = [
        path(&[]),
        path(&[""]),
        path(&["digits", "epoch=x"]),
        path(&["digits", "mode=append"]),
        path(&["digits", "epoch=0", "more"]),
        FlightDescriptor::new_cmd("SELECT 1"),
        FlightDescriptor::new_cmd(vec![0xff, 0xfe]),
        FlightDescriptor::new_cmd(""),
    ];
    for descriptor in bad {
        let error = client.flight_info(descriptor.clone()).await.unwrap_err();
        assert!(error.kind == Kind::BadInput && error.remedy.is_some(), "{descriptor:?}: {error:?}");
    }
    let error = client.flight_info(FlightDescriptor::new_cmd("{\"dataset\":\"x\"}")).await.unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
}

#[tokio::test]
async fn sql_is_a_flight_sql_statement() {
    let server = Running::open(Double::new(30, 4, 5)).await;
    let client = server.client().await;
    let rows = client.sql("SELECT 1").await.unwrap().collect().await.unwrap();
    assert_eq!(rows[0]["_id"].as_primitive::<Int64Type>().value(0), 30);

    // No rows, but a schema; the errors of planning and of running.
    let nothing = client.sql("SELECT nothing").await.unwrap();
    assert_eq!(nothing.schema.fields().len(), 3);
    assert!(nothing.collect().await.unwrap().is_empty());
    assert_eq!(client.sql("SELEC").await.unwrap_err().message, "SQL: expected a statement");
    let late = client.sql("SELECT late_error").await.unwrap().collect().await.unwrap_err();
    assert_eq!(late, Error::bad_input("division by zero"));
}

#[tokio::test]
async fn poll_is_complete_at_once() {
    let server = Running::open(Double::new(5, 4, 5)).await;
    let poll = server.raw().await.poll_flight_info(path(&["digits"])).await.unwrap().into_inner();
    assert!(poll.flight_descriptor.is_none() && poll.info.unwrap().endpoint.len() == 2);
}

#[tokio::test]
async fn a_put_arrives_with_name_mode_and_rows() {
    let server = Running::open(Double::new(5, 4, 5)).await;
    let client = server.client().await;
    // Some messages of over a mebibyte, so that they are cut and decoded off the stream's thread.
    let batches = vec![chunk(0, 900, 4000), chunk(900, 10, 4000)];
    let schema = batches[0].schema();
    let sent = stream::iter(batches.clone().into_iter().map(Ok)).boxed();
    assert_eq!(client.put("mine", Some("append"), schema.clone(), sent).await.unwrap(), json!({"rows": 910}));
    let (path, mode, rows) = server.double.told.put.lock().unwrap().pop().unwrap();
    assert_eq!((path, mode.as_deref()), (vec!["mine".to_owned()], Some("append")));
    let wire = rows.schema();
    let expected: Vec<RecordBatch> = batches.iter().map(|b| to_wire(b, &wire).unwrap()).collect();
    assert_eq!(rows, concat_batches(&wire, &expected).unwrap());

    let error = client.put("mine", Some("upsert"), schema.clone(), stream::empty().boxed()).await.unwrap_err();
    assert!(error.kind == Kind::BadInput && error.message.contains("upsert"), "{error}");

    // The sender's own error wins over the server's about the broken stream, and nothing was put.
    let broken = stream::iter([Ok(batches[1].clone()), Err(Error::bad_input("row 11 is bad"))]).boxed();
    assert_eq!(client.put("mine", None, schema, broken).await.unwrap_err().message, "row 11 is bad");
}

#[tokio::test]
async fn a_put_of_wrong_messages_is_refused() {
    let server = Running::start(Double::new(5, 4, 5), |config| config.put_limit = 1 << 20).await;
    let mut raw = server.raw().await;
    let no_schema = arrow_flight::FlightData::new().with_descriptor(path(&["mine"]));
    let no_descriptor = arrow_flight::FlightData::new().with_data_header(vec![1, 2, 3]);
    let rubbish = no_descriptor.clone().with_descriptor(path(&["mine"]));
    let a_mode = no_schema.clone().with_app_metadata("{\"mode\":3}");
    for (message, says) in [(no_schema, "schema"), (no_descriptor, "dataset"), (rubbish, "header"), (a_mode, "mode")] {
        let status = raw.do_put(stream::iter([message])).await.unwrap_err();
        assert!(status.code() == tonic::Code::InvalidArgument && status.message().contains(says), "{says}: {status:?}");
    }
    let huge = arrow_flight::FlightData::new().with_descriptor(path(&["mine"])).with_data_body(vec![0; 2 << 20]);
    let status = raw.do_put(stream::iter([huge])).await.unwrap_err();
    assert!(status.code() == tonic::Code::ResourceExhausted && status.message().contains("fewer rows"), "{status:?}");
    assert!(server.double.told.put.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_panic_ends_its_call_alone() {
    let server = Running::open(Double::new(5, 4, 5)).await;
    let client = server.client().await;
    // A stream that is open on the same connection goes on.
    let mut echo = client.action("forebay.echo", json!(1)).await.unwrap();
    assert_eq!(client.action("forebay.panics", json!({})).await.err().unwrap().kind, Kind::Internal);
    assert_eq!(echo.next().await.unwrap().unwrap(), json!(1));
    client.ping().await.unwrap();
}

#[tokio::test]
async fn actions_are_json_both_ways() {
    let server = Running::open(Double::new(5, 4, 5)).await;
    let client = server.client().await;
    let answers: Vec<Value> = client.action("forebay.echo", json!({"a": [1, "ü"]})).await.unwrap().map(|v| v.unwrap()).collect().await;
    assert_eq!(answers, [json!({"a": [1, "ü"]}), json!({"again": {"a": [1, "ü"]}})]);

    let mut late = client.action("forebay.fails", json!({})).await.unwrap();
    assert_eq!(late.next().await.unwrap().unwrap(), json!(1));
    assert_eq!(late.next().await.unwrap().unwrap_err(), Error::failed_precondition("late"));

    for unknown in ["forebay.nothing", "Nothing"] {
        let error = client.action(unknown, json!({})).await.err().unwrap();
        assert_eq!(error.kind, Kind::Unsupported, "{unknown}");
    }
    let status = server.raw().await.do_action(arrow_flight::Action::new("forebay.echo", "{not json")).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    // An empty body is an empty object.
    let mut empty = server.raw().await.do_action(arrow_flight::Action::new("forebay.echo", "")).await.unwrap().into_inner();
    assert_eq!(&empty.message().await.unwrap().unwrap().body[..], b"{}");
    client.close().await.unwrap();
    assert!(client.actions().await.unwrap().iter().any(|(name, what)| name == "forebay.materialize" && !what.is_empty()));
}
