//! Flight SQL as drivers speak it: the layout of every answer, and what is refused.

use arrow::array::*;
use arrow::datatypes::{DataType, Int32Type, Schema, UInt32Type, UnionMode};
use arrow::ipc::convert::try_schema_from_ipc_buffer;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::*;
use arrow_flight::{
    Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightDescriptor, FlightEndpoint, FlightInfo,
    RenewFlightEndpointRequest,
};
use forebay_core::{Error, Kind, Result};
use forebay_flight::Client;
use forebay_flight::encode::Encoder;
use forebay_flight::status::from_status;
use forebay_flight::ticket::{Claim, TicketKey};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tonic::transport::Channel;

use super::backend::{Double, chunk};
use super::{Running, eventually};

type Raw = FlightServiceClient<Channel>;

fn double() -> Double {
    Double::new(30, 4, 5)
}

fn descriptor(command: &impl ProstMessageExt) -> FlightDescriptor {
    FlightDescriptor::new_cmd(command.as_any().encode_to_vec())
}

async fn info(client: &Client, command: &impl ProstMessageExt) -> Result<FlightInfo> {
    client.flight_info(descriptor(command)).await
}

/// The rows of a command; its schema must be the same wherever it is said.
async fn answer(server: &Running, command: &impl ProstMessageExt) -> RecordBatch {
    let client = server.client().await;
    let info = info(&client, command).await.unwrap();
    let said = try_schema_from_ipc_buffer(&info.schema).unwrap();
    assert_eq!(info.endpoint.len(), 1);
    assert!(info.endpoint[0].location.is_empty());
    let asked = server.raw().await.get_schema(descriptor(command)).await.unwrap().into_inner();
    assert_eq!(try_schema_from_ipc_buffer(&asked.schema).unwrap(), said);
    let ticket = info.endpoint[0].ticket.clone().unwrap().ticket;
    let stream = client.do_get(ticket).await.unwrap();
    let schema = stream.schema.clone();
    assert_eq!(*schema, said);
    let batches: Vec<RecordBatch> = stream.batches.try_collect().await.unwrap();
    assert!(batches.len() <= 1);
    batches.into_iter().next().unwrap_or_else(|| RecordBatch::new_empty(schema))
}

fn texts(batch: &RecordBatch, column: &str) -> Vec<String> {
    batch[column].as_string::<i32>().iter().map(|t| t.unwrap().to_owned()).collect()
}

fn tables() -> CommandGetTables {
    CommandGetTables {
        catalog: None,
        db_schema_filter_pattern: None,
        table_name_filter_pattern: None,
        table_types: vec![],
        include_schema: false,
    }
}

fn shape(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|f| format!("{} {}{}", f.name(), f.data_type(), if f.is_nullable() { "?" } else { "" })).collect()
}

async fn act(raw: &mut Raw, name: &str, body: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let answers = raw.do_action(Action::new(name, body)).await.map_err(|s| from_status(&s))?.into_inner();
    answers.map_ok(|r| r.body.to_vec()).map_err(|s| from_status(&s)).try_collect().await
}

#[tokio::test]
async fn catalogs_schemas_and_kinds() {
    let server = Running::open(double()).await;
    let catalogs = answer(&server, &CommandGetCatalogs {}).await;
    assert_eq!(shape(&catalogs.schema()), ["catalog_name Utf8"]);
    assert_eq!(texts(&catalogs, "catalog_name"), ["forebay"]);
    let of = |catalog: Option<&str>, pattern: Option<&str>| CommandGetDbSchemas {
        catalog: catalog.map(str::to_owned),
        db_schema_filter_pattern: pattern.map(str::to_owned),
    };
    let schemas = answer(&server, &of(None, None)).await;
    assert_eq!(shape(&schemas.schema()), ["catalog_name Utf8?", "db_schema_name Utf8"]);
    assert_eq!(texts(&schemas, "db_schema_name"), ["public", "system"]);
    assert_eq!(texts(&answer(&server, &of(Some("forebay"), Some("s%"))).await, "db_schema_name"), ["system"]);
    // The empty name is no catalog, and not every catalog.
    assert_eq!(answer(&server, &of(Some(""), None)).await.num_rows(), 0);
    assert_eq!(answer(&server, &of(Some("other"), None)).await.num_rows(), 0);
    let kinds = answer(&server, &CommandGetTableTypes {}).await;
    assert_eq!(shape(&kinds.schema()), ["table_type Utf8"]);
    assert_eq!(texts(&kinds, "table_type"), ["BASE TABLE", "VIEW"]);
}

#[tokio::test]
async fn tables_have_four_columns_or_five() {
    let server = Running::open(double()).await;
    let plain = answer(&server, &tables()).await;
    let four = ["catalog_name Utf8?", "db_schema_name Utf8?", "table_name Utf8", "table_type Utf8"];
    assert_eq!(shape(&plain.schema()), four);
    assert_eq!(texts(&plain, "table_name"), ["dropped", "my_words", "myxwords", "words", "workers"]);
    let full = answer(&server, &CommandGetTables { include_schema: true, ..tables() }).await;
    assert_eq!(shape(&full.schema()), [&four[..], &["table_schema Binary"]].concat());
    // One was dropped between the two looks.
    assert_eq!(texts(&full, "table_name"), ["my_words", "myxwords", "words", "workers"]);
    let bytes = full["table_schema"].as_binary::<i32>().value(0);
    // An encapsulated message: the marker, the length, the schema.
    assert_eq!(bytes[..4], [0xff; 4]);
    let schema = try_schema_from_ipc_buffer(bytes).unwrap();
    assert_eq!(schema.field(1).data_type(), &DataType::Utf8, "views are not sent");
    assert_eq!(schema.field(2).metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");

    let filtered = |catalog: Option<&str>, schema: Option<&str>, table: Option<&str>, kinds: &[&str]| CommandGetTables {
        catalog: catalog.map(str::to_owned),
        db_schema_filter_pattern: schema.map(str::to_owned),
        table_name_filter_pattern: table.map(str::to_owned),
        table_types: kinds.iter().map(|k| (*k).to_owned()).collect(),
        include_schema: false,
    };
    for (asked, expected) in [
        (filtered(Some("forebay"), None, None, &["VIEW"]), &["workers"][..]),
        (filtered(Some(""), None, None, &[]), &[]),
        (filtered(None, Some("sys%"), None, &[]), &["workers"]),
        (filtered(None, Some(""), None, &[]), &[]),
        (filtered(None, None, Some("my_words"), &[]), &["my_words", "myxwords"]),
        (filtered(None, None, Some(r"my\_words"), &[]), &["my_words"]),
        (filtered(None, None, Some("WORDS"), &[]), &[]),
        (filtered(None, None, None, &["BASE TABLE", "table"]), &["dropped", "my_words", "myxwords", "words"]),
        (filtered(None, None, None, &["SYNONYM"]), &[]),
    ] {
        assert_eq!(texts(&answer(&server, &asked).await, "table_name"), expected, "{asked:?}");
    }
}

#[tokio::test]
async fn keys_are_empty_and_well_formed() {
    let server = Running::open(double()).await;
    let (catalog, db_schema, table) = (None, None, "words".to_owned());
    let primary =
        answer(&server, &CommandGetPrimaryKeys { catalog: catalog.clone(), db_schema: db_schema.clone(), table: table.clone() }).await;
    assert_eq!(
        shape(&primary.schema()),
        ["catalog_name Utf8?", "db_schema_name Utf8?", "table_name Utf8", "column_name Utf8", "key_name Utf8?", "key_sequence Int32"]
    );
    let imported =
        answer(&server, &CommandGetImportedKeys { catalog: catalog.clone(), db_schema: db_schema.clone(), table: table.clone() }).await;
    let exported = answer(&server, &CommandGetExportedKeys { catalog, db_schema, table: table.clone() }).await;
    let cross = CommandGetCrossReference {
        pk_catalog: None,
        pk_db_schema: None,
        pk_table: table.clone(),
        fk_catalog: None,
        fk_db_schema: None,
        fk_table: table,
    };
    let cross = answer(&server, &cross).await;
    for keys in [&imported, &exported, &cross] {
        let columns = shape(&keys.schema());
        assert_eq!(columns.len(), 13);
        assert_eq!(columns[2..4], ["pk_table_name Utf8", "pk_column_name Utf8"]);
        assert_eq!(
            columns[8..],
            ["key_sequence Int32", "fk_key_name Utf8?", "pk_key_name Utf8?", "update_rule UInt8", "delete_rule UInt8"]
        );
        assert_eq!(keys.num_rows(), 0);
    }
}

#[tokio::test]
async fn server_info_has_the_layout_that_drivers_cast() {
    let server = Running::open(double()).await;
    let transaction = answer(&server, &CommandGetSqlInfo { info: vec![SqlInfo::FlightSqlServerTransaction as u32] }).await;
    assert_eq!(transaction["info_name"].as_primitive::<UInt32Type>().values(), &[8]);
    let value = transaction["value"].as_any().downcast_ref::<UnionArray>().unwrap();
    assert_eq!((value.type_id(0), value.value(0).as_primitive::<Int32Type>().value(0)), (3, 0));

    let all = answer(&server, &CommandGetSqlInfo { info: vec![] }).await;
    let schema = all.schema();
    let DataType::Union(children, UnionMode::Dense) = schema.field(1).data_type() else { panic!("{schema:?}") };
    let children: Vec<String> = children.iter().map(|(id, field)| format!("{id} {}", field.name())).collect();
    let expected = ["string_value", "bool_value", "bigint_value", "int32_bitmask", "string_list", "int32_to_int32_list_map"];
    assert_eq!(children, expected.iter().enumerate().map(|(i, n)| format!("{i} {n}")).collect::<Vec<_>>());
    assert_eq!(schema.field(0).data_type(), &DataType::UInt32);
    // Every code that the protocol has.
    let known: Vec<u32> = (0..1_000).filter(|code| SqlInfo::try_from(*code as i32).is_ok()).collect();
    assert_eq!(all["info_name"].as_primitive::<UInt32Type>().values(), known.as_slice());
    let values = all["value"].as_any().downcast_ref::<UnionArray>().unwrap();
    let at = |code: SqlInfo| known.iter().position(|k| *k == code as u32).unwrap();
    assert_eq!(values.value(at(SqlInfo::FlightSqlServerName)).as_string::<i32>().value(0), "Forebay");
    assert_eq!(values.value(at(SqlInfo::SqlIdentifierQuoteChar)).as_string::<i32>().value(0), "\"");
    assert!(values.value(at(SqlInfo::FlightSqlServerReadOnly)).as_boolean().value(0));
    for (code, type_id) in [
        (SqlInfo::SqlDdlTable, 1),
        (SqlInfo::SqlKeywords, 4),
        (SqlInfo::SqlSupportsConvert, 5),
        (SqlInfo::SqlMaxColumnsInTable, 2),
        (SqlInfo::SqlSupportedUnions, 3),
        (SqlInfo::SqlNamedParametersSupported, 1),
        (SqlInfo::SqlMaxRowSizeIncludesBlobs, 1),
    ] {
        assert_eq!(values.type_id(at(code)), type_id, "{code:?}");
    }
    assert_eq!(answer(&server, &CommandGetSqlInfo { info: vec![4_711] }).await.num_rows(), 0);
}

#[tokio::test]
async fn types_are_listed_and_filtered() {
    let server = Running::open(double()).await;
    let all = answer(&server, &CommandGetXdbcTypeInfo { data_type: None }).await;
    assert_eq!(all.num_columns(), 19);
    assert!(texts(&all, "type_name").contains(&"DECIMAL".to_owned()));
    let codes = all["data_type"].as_primitive::<Int32Type>().values().to_vec();
    assert!(codes.is_sorted());
    let some = answer(&server, &CommandGetXdbcTypeInfo { data_type: Some(XdbcDataType::XdbcVarchar as i32) }).await;
    assert_eq!(texts(&some, "type_name"), ["VARCHAR"]);
    assert_eq!(answer(&server, &CommandGetXdbcTypeInfo { data_type: Some(12_345) }).await.num_rows(), 0);
}

fn packed(message: &impl ProstMessageExt) -> Vec<u8> {
    message.as_any().encode_to_vec()
}

async fn prepare(raw: &mut Raw, query: &str) -> Result<ActionCreatePreparedStatementResult> {
    let asked = ActionCreatePreparedStatementRequest { query: query.to_owned(), transaction_id: None };
    let bodies = act(raw, "CreatePreparedStatement", packed(&asked)).await?;
    assert_eq!(bodies.len(), 1);
    Ok(Any::decode(bodies[0].as_slice()).unwrap().unpack().unwrap().unwrap())
}

/// A put of a Flight SQL command; the answer's metadata.
async fn put(raw: &mut Raw, command: &impl ProstMessageExt, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let mut encoder = Encoder::new(&batches[0].schema()).unwrap();
    let mut messages = vec![encoder.schema_message().into_flight_data(Some(descriptor(command)))];
    for batch in batches {
        messages.extend(encoder.plain(batch).unwrap().map(|m| m.unwrap().into_flight_data(None)));
    }
    let answers = raw.do_put(stream::iter(messages)).await.map_err(|s| from_status(&s))?.into_inner();
    let answers: Vec<_> = answers.map_err(|s| from_status(&s)).try_collect().await?;
    assert_eq!(answers.len(), 1);
    Ok(answers[0].app_metadata.to_vec())
}

fn values(rows: &[i64]) -> RecordBatch {
    RecordBatch::try_from_iter(vec![("0", std::sync::Arc::new(Int64Array::from(rows.to_vec())) as ArrayRef)]).unwrap()
}

#[tokio::test]
async fn prepared_statements_carry_all_they_need() {
    let server = Running::open(double()).await;
    let (mut raw, client) = (server.raw().await, server.client().await);
    let prepared = prepare(&mut raw, "SELECT ?").await.unwrap();
    // Never empty, which some drivers take for an update.
    assert_eq!(try_schema_from_ipc_buffer(&prepared.dataset_schema).unwrap().fields().len(), 3);
    assert_eq!(shape(&try_schema_from_ipc_buffer(&prepared.parameter_schema).unwrap()), ["$1 Int64?"]);
    let without = prepare(&mut raw, "SELECT 1").await.unwrap();
    assert_eq!(try_schema_from_ipc_buffer(&without.parameter_schema).unwrap().fields().len(), 0);

    let asked = CommandPreparedStatementQuery { prepared_statement_handle: prepared.prepared_statement_handle.clone() };
    let bound = put(&mut raw, &asked, &[values(&[]), values(&[42])]).await.unwrap();
    // The result is not in an `Any`, and names another handle.
    let bound = DoPutPreparedStatementResult::decode(bound.as_slice()).unwrap().prepared_statement_handle.unwrap();
    assert_ne!(bound, prepared.prepared_statement_handle);
    let asked = CommandPreparedStatementQuery { prepared_statement_handle: bound.clone() };
    let info = info(&client, &asked).await.unwrap();
    let rows = client.read_info(info).await.unwrap().collect().await.unwrap();
    assert_eq!(rows[0].num_rows(), 30);
    let told = server.double.told.statements.lock().unwrap().pop().unwrap();
    assert_eq!(told.sql, "SELECT ?");
    assert_eq!(told.parameters().unwrap(), Some(values(&[42])));

    let close = ActionClosePreparedStatementRequest { prepared_statement_handle: bound.clone() };
    assert!(act(&mut raw, "ClosePreparedStatement", packed(&close)).await.unwrap().is_empty());
    assert_eq!(prepare(&mut raw, "SELEC").await.unwrap_err().kind, Kind::BadInput);
}

#[tokio::test]
async fn handles_are_only_what_this_server_signed() {
    let server = Running::open(double()).await;
    let (mut raw, client) = (server.raw().await, server.client().await);
    let handle = prepare(&mut raw, "SELECT ?").await.unwrap().prepared_statement_handle;
    let ask = |handle: Vec<u8>| CommandPreparedStatementQuery { prepared_statement_handle: handle.into() };
    let mut changed = handle.to_vec();
    changed[20] ^= 1;
    let statement = forebay_flight::statement::Statement::new("SELECT 1", Default::default());
    let claim = Claim::Prepared(statement);
    let term = Duration::from_secs(60);
    for (bad, kind) in [
        (changed, Kind::Unauthenticated),
        (b"mine".to_vec(), Kind::Unauthenticated),
        (vec![], Kind::Unauthenticated),
        (TicketKey::random().sign(&claim, term).unwrap().to_vec(), Kind::Unauthenticated),
        (server.key.sign(&claim, Duration::ZERO).unwrap().to_vec(), Kind::FailedPrecondition),
        (server.key.sign(&Claim::Session, term).unwrap().to_vec(), Kind::BadInput),
    ] {
        let error = info(&client, &ask(bad.clone())).await.unwrap_err();
        assert!(error.kind == kind && error.remedy.as_deref().unwrap().contains("prepare"), "{error:?}");
        assert_eq!(put(&mut raw, &ask(bad.clone()), &[values(&[1])]).await.unwrap_err().kind, kind);
        let close = ActionClosePreparedStatementRequest { prepared_statement_handle: bad.into() };
        assert_eq!(act(&mut raw, "ClosePreparedStatement", packed(&close)).await.unwrap_err().kind, kind);
    }
    // A handle is not a ticket, nor a token.
    let error = client.do_get(handle.clone()).await.unwrap_err();
    assert!(error.kind == Kind::BadInput && error.to_string().contains("GetFlightInfo"), "{error}");
    let error = put(&mut raw, &ask(handle.to_vec()), &[values(&[1, 2])]).await.unwrap_err();
    assert!(error.kind == Kind::Unsupported && error.message.contains("2 rows"), "{error}");
    let error = put(&mut raw, &ask(handle.to_vec()), &[values(&[])]).await.unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
}

#[tokio::test]
async fn what_is_not_offered_says_its_name() {
    let server = Running::open(double()).await;
    let (mut raw, client) = (server.raw().await, server.client().await);
    let update = CommandStatementUpdate { query: "DELETE FROM words".into(), transaction_id: None };
    let prepared = CommandPreparedStatementUpdate { prepared_statement_handle: b"x".to_vec().into() };
    let plan = CommandStatementSubstraitPlan { plan: None, transaction_id: None };
    for (error, name) in [
        (info(&client, &update).await.unwrap_err(), "CommandStatementUpdate"),
        (put(&mut raw, &update, &[values(&[1])]).await.unwrap_err(), "CommandStatementUpdate"),
        (put(&mut raw, &prepared, &[values(&[1])]).await.unwrap_err(), "CommandPreparedStatementUpdate"),
        (info(&client, &plan).await.unwrap_err(), "CommandStatementSubstraitPlan"),
        (act(&mut raw, "BeginTransaction", vec![]).await.unwrap_err(), "BeginTransaction"),
        (act(&mut raw, "EndTransaction", vec![]).await.unwrap_err(), "EndTransaction"),
        (act(&mut raw, "BeginSavepoint", vec![]).await.unwrap_err(), "BeginSavepoint"),
        (act(&mut raw, "CreatePreparedSubstraitPlan", vec![]).await.unwrap_err(), "CreatePreparedSubstraitPlan"),
        (act(&mut raw, "Unheard", vec![]).await.unwrap_err(), "Unheard"),
    ] {
        assert!(error.kind == Kind::Unsupported && error.message.contains(name), "{error:?}");
    }
    let transaction = CommandStatementQuery { query: "SELECT 1".into(), transaction_id: Some(b"t".to_vec().into()) };
    assert_eq!(info(&client, &transaction).await.unwrap_err().kind, Kind::Unsupported);
    let none = CommandStatementQuery { query: "SELECT 1".into(), transaction_id: Some(Vec::new().into()) };
    info(&client, &none).await.unwrap();
    let future = Any { type_url: "type.googleapis.com/arrow.flight.protocol.sql.CommandFuture".into(), value: Vec::new().into() };
    let error = client.flight_info(FlightDescriptor::new_cmd(future.encode_to_vec())).await.unwrap_err();
    assert!(error.kind == Kind::Unsupported && error.message.contains("CommandFuture"), "{error:?}");
    // Bytes that are not what they say are the client's fault.
    let broken = Any { type_url: CommandGetTables::type_url().into(), value: vec![0xff; 9].into() };
    let error = client.flight_info(FlightDescriptor::new_cmd(broken.encode_to_vec())).await.unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
    for name in
        ["CreatePreparedStatement", "ClosePreparedStatement", "CancelFlightInfo", "CancelQuery", "SetSessionOptions", "RenewFlightEndpoint"]
    {
        assert_eq!(act(&mut raw, name, vec![0xff; 9]).await.unwrap_err().kind, Kind::BadInput, "{name}");
    }
}

#[tokio::test]
async fn polling_is_complete_at_once() {
    let server = Running::open(double()).await;
    let asked = CommandStatementQuery { query: "SELECT 1".into(), transaction_id: None };
    let poll = server.raw().await.poll_flight_info(descriptor(&asked)).await.unwrap().into_inner();
    assert!(poll.flight_descriptor.is_none() && poll.progress == Some(1.0));
    let rows = server.client().await.read_info(poll.info.unwrap()).await.unwrap().collect().await.unwrap();
    assert_eq!(rows[0].num_rows(), 30);
}

async fn cancel(raw: &mut Raw, info: FlightInfo) -> Result<CancelStatus> {
    let bodies = act(raw, "CancelFlightInfo", CancelFlightInfoRequest { info: Some(info) }.encode_to_vec()).await?;
    Ok(CancelStatus::try_from(CancelFlightInfoResult::decode(bodies[0].as_slice()).unwrap().status).unwrap())
}

#[tokio::test]
async fn a_query_ends_when_it_is_cancelled_or_left() {
    let server = Running::open(double()).await;
    let (mut raw, client) = (server.raw().await, server.client().await);
    let endless = CommandStatementQuery { query: "SELECT endless".into(), transaction_id: None };
    let ours = info(&client, &endless).await.unwrap();
    let other = info(&client, &endless).await.unwrap();
    let mut stream = client.read_info(ours.clone()).await.unwrap().batches;
    let mut left = client.read_info(other.clone()).await.unwrap().batches;
    stream.next().await.unwrap().unwrap();
    left.next().await.unwrap().unwrap();
    assert_eq!(server.double.told.endless.load(SeqCst), 2);
    assert_eq!(cancel(&mut raw, ours.clone()).await.unwrap(), CancelStatus::Cancelled);
    let end = loop {
        if let Err(error) = stream.next().await.expect("an error ends the stream") {
            break error;
        }
    };
    assert_eq!(end.kind, Kind::Cancelled, "{end:?}");
    eventually("the cancelled query is dropped", || server.double.told.endless.load(SeqCst) == 1).await;
    // Its ticket is worth nothing any more; that of the same query asked elsewhere is.
    let late = client.read_info(ours).await.unwrap().collect().await.unwrap_err();
    assert_eq!(late.kind, Kind::Cancelled);
    left.next().await.unwrap().unwrap();
    drop(left);
    eventually("the query that was left is dropped", || server.double.told.endless.load(SeqCst) == 0).await;

    // Cancelled before it is read.
    let never = info(&client, &endless).await.unwrap();
    assert_eq!(cancel(&mut raw, never.clone()).await.unwrap(), CancelStatus::Cancelled);
    assert_eq!(client.read_info(never).await.unwrap().collect().await.unwrap_err().kind, Kind::Cancelled);
    // By its older name.
    let again = info(&client, &endless).await.unwrap();
    let asked = ActionCancelQueryRequest { info: again.encode_to_vec().into() };
    let bodies = act(&mut raw, "CancelQuery", packed(&asked)).await.unwrap();
    let result: ActionCancelQueryResult = Any::decode(bodies[0].as_slice()).unwrap().unpack().unwrap().unwrap();
    assert_eq!(result.result, 1);

    // Datasets are not queries, another's ticket is nobody's, and one that runs elsewhere is stopped there.
    let dataset = client.flight_info(FlightDescriptor::new_path(vec!["digits".into()])).await.unwrap();
    assert_eq!(cancel(&mut raw, dataset).await.unwrap(), CancelStatus::NotCancellable);
    let mut forged = other.clone();
    forged.endpoint[0].ticket.as_mut().unwrap().ticket = b"fb1.forged".to_vec().into();
    assert_eq!(cancel(&mut raw, forged).await.unwrap_err().kind, Kind::Unauthenticated);
    let mut elsewhere = other;
    elsewhere.endpoint[0] = elsewhere.endpoint[0].clone().with_location("grpc+tcp://elsewhere:1");
    assert_eq!(cancel(&mut raw, elsewhere).await.unwrap(), CancelStatus::NotCancellable);
}

#[tokio::test]
async fn endpoints_can_be_renewed() {
    let server = Running::start(double(), |c| c.ticket_term = Duration::from_secs(5)).await;
    let (mut raw, client) = (server.raw().await, server.client().await);
    let asked = CommandStatementQuery { query: "SELECT 1".into(), transaction_id: None };
    let mut info = info(&client, &asked).await.unwrap();
    let body = RenewFlightEndpointRequest { endpoint: Some(info.endpoint[0].clone()) }.encode_to_vec();
    let renewed = act(&mut raw, "RenewFlightEndpoint", body).await.unwrap();
    info.endpoint = vec![FlightEndpoint::decode(renewed[0].as_slice()).unwrap()];
    assert!(info.endpoint[0].expiration_time.is_some());
    assert_eq!(client.read_info(info).await.unwrap().collect().await.unwrap()[0].num_rows(), 30);
    let expired = server.key.sign(&Claim::Group(serde_json::json!({})), Duration::ZERO).unwrap();
    let endpoint = FlightEndpoint::new().with_ticket(arrow_flight::Ticket::new(expired));
    let body = RenewFlightEndpointRequest { endpoint: Some(endpoint) }.encode_to_vec();
    assert_eq!(act(&mut raw, "RenewFlightEndpoint", body).await.unwrap_err().kind, Kind::FailedPrecondition);
}

/// Session messages, written here once more as Flight.proto has them.
mod wire {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Value {
        #[prost(string, optional, tag = "1")]
        pub text: Option<String>,
        #[prost(sfixed64, optional, tag = "3")]
        pub int: Option<i64>,
        #[prost(double, optional, tag = "4")]
        pub double: Option<f64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Options {
        #[prost(map = "string, message", tag = "1")]
        pub options: std::collections::HashMap<String, Value>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Errors {
        #[prost(map = "string, message", tag = "1")]
        pub errors: std::collections::HashMap<String, Status>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Status {
        #[prost(int32, tag = "1")]
        pub value: i32,
    }
}

fn with_cookie<T>(message: T, cookie: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("cookie", format!("other=1; {cookie}").parse().unwrap());
    request
}

#[tokio::test]
async fn a_session_is_a_signed_cookie() {
    let server = Running::open(double()).await;
    let mut raw = server.raw().await;
    let text = |t: &str| wire::Value { text: Some(t.into()), ..wire::Value::default() };
    let options = [
        ("schema", text("system")),
        ("timeout", wire::Value { double: Some(1.5), ..wire::Value::default() }),
        ("row_limit", wire::Value { int: Some(7), ..wire::Value::default() }),
        ("catalog", text("nowhere")),
        ("memory", text("all")),
    ];
    let body = wire::Options { options: options.into_iter().map(|(n, v)| (n.to_owned(), v)).collect() }.encode_to_vec();
    let answered = raw.do_action(Action::new("SetSessionOptions", body)).await.unwrap();
    let cookie = answered.metadata().get("set-cookie").unwrap().to_str().unwrap().split(';').next().unwrap().to_owned();
    let result = answered.into_inner().message().await.unwrap().unwrap();
    let errors: HashMap<String, i32> = wire::Errors::decode(result.body).unwrap().errors.into_iter().map(|(n, e)| (n, e.value)).collect();
    assert_eq!(errors, HashMap::from([("catalog".to_owned(), 2), ("memory".to_owned(), 1)]));

    let got = raw.do_action(with_cookie(Action::new("GetSessionOptions", vec![]), &cookie)).await.unwrap();
    let got = wire::Options::decode(got.into_inner().message().await.unwrap().unwrap().body).unwrap().options;
    assert_eq!((got["catalog"].text.as_deref(), got["schema"].text.as_deref()), (Some("forebay"), Some("system")));
    assert_eq!((got["timeout"].double, got["row_limit"].int), (Some(1.5), Some(7)));
    let asked = CommandStatementQuery { query: "SELECT 1".into(), transaction_id: None };
    raw.get_flight_info(with_cookie(descriptor(&asked), &cookie)).await.unwrap();
    let session = server.double.told.statements.lock().unwrap().pop().unwrap().session;
    assert_eq!((session.schema.as_deref(), session.timeout, session.row_limit), (Some("system"), Some(1.5), Some(7)));
    // Another call without the cookie is another session.
    raw.get_flight_info(descriptor(&asked)).await.unwrap();
    assert_eq!(server.double.told.statements.lock().unwrap().pop().unwrap().session, Default::default());

    // A session that is lost is an error; setting begins a new one.
    let lost = server.key.sign(&Claim::Options(Default::default()), Duration::ZERO).unwrap();
    for (bad, kind) in [
        (format!("forebay_session={}", String::from_utf8(lost.to_vec()).unwrap()), Kind::FailedPrecondition),
        ("forebay_session=fb1.mine".to_owned(), Kind::Unauthenticated),
    ] {
        let error = raw.do_action(with_cookie(Action::new("GetSessionOptions", vec![]), &bad)).await.unwrap_err();
        assert_eq!(from_status(&error).kind, kind);
        let error = raw.get_flight_info(with_cookie(descriptor(&asked), &bad)).await.unwrap_err();
        assert_eq!(from_status(&error).kind, kind);
        raw.do_action(with_cookie(Action::new("SetSessionOptions", vec![]), &bad)).await.unwrap();
    }
    let closed = raw.do_action(with_cookie(Action::new("CloseSession", vec![]), &cookie)).await.unwrap();
    assert!(closed.metadata().get("set-cookie").unwrap().to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(closed.into_inner().message().await.unwrap().unwrap().body.to_vec(), [0x08, 0x01]);
}

fn ingest(table: &str, missing: TableNotExistOption, existing: TableExistsOption) -> CommandStatementIngest {
    let options = TableDefinitionOptions { if_not_exist: missing as i32, if_exists: existing as i32 };
    CommandStatementIngest {
        table_definition_options: Some(options),
        table: table.to_owned(),
        schema: None,
        catalog: None,
        temporary: false,
        transaction_id: None,
        options: HashMap::new(),
    }
}

#[tokio::test]
async fn ingesting_is_a_put_in_the_mode_that_is_meant() {
    use TableExistsOption as Existing;
    use TableNotExistOption as Missing;
    let server = Running::open(double()).await;
    let mut raw = server.raw().await;
    let rows = [chunk(0, 20, 4), chunk(20, 5, 4)];
    // `digits` is there, others are not.
    for (table, missing, existing, expected) in [
        ("new", Missing::Create, Existing::Fail, Ok(None)),
        ("new", Missing::Create, Existing::Append, Ok(None)),
        ("new", Missing::Fail, Existing::Append, Err(Kind::NotFound)),
        ("digits", Missing::Create, Existing::Fail, Err(Kind::AlreadyExists)),
        ("digits", Missing::Create, Existing::Replace, Ok(Some("replace"))),
        ("digits", Missing::Fail, Existing::Append, Ok(Some("append"))),
        ("digits", Missing::Unspecified, Existing::Unspecified, Err(Kind::BadInput)),
        ("new", Missing::Unspecified, Existing::Fail, Err(Kind::BadInput)),
    ] {
        let answer = put(&mut raw, &ingest(table, missing, existing), &rows).await;
        match expected {
            Ok(mode) => {
                // Not in an `Any` either.
                assert_eq!(DoPutUpdateResult::decode(answer.unwrap().as_slice()).unwrap().record_count, 25);
                let (path, told, got) = server.double.told.put.lock().unwrap().pop().unwrap();
                assert_eq!((path, told.as_deref(), got.num_rows()), (vec![table.to_owned()], mode, 25));
            }
            Err(kind) => assert_eq!(answer.unwrap_err().kind, kind, "{table} {missing:?} {existing:?}"),
        }
    }
    let create = || ingest("new", Missing::Create, Existing::Fail);
    let refused: [(CommandStatementIngest, Kind); 5] = [
        (CommandStatementIngest { temporary: true, ..create() }, Kind::Unsupported),
        (CommandStatementIngest { transaction_id: Some(b"t".to_vec().into()), ..create() }, Kind::Unsupported),
        (CommandStatementIngest { catalog: Some("other".into()), ..create() }, Kind::NotFound),
        (CommandStatementIngest { schema: Some("system".into()), ..create() }, Kind::BadInput),
        (CommandStatementIngest { options: HashMap::from([("x".to_owned(), "y".to_owned())]), ..create() }, Kind::BadInput),
    ];
    for (command, kind) in refused {
        let error = put(&mut raw, &command, &rows).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    }
    let named = CommandStatementIngest { catalog: Some("forebay".into()), schema: Some("public".into()), ..create() };
    put(&mut raw, &named, &rows).await.unwrap();
}

#[tokio::test]
async fn every_call_needs_the_token() {
    let server = Running::start(double(), |c| c.token = Some("secret".into())).await;
    let mut raw = server.raw().await;
    let closed = |error: Error| assert_eq!(error.kind, Kind::Unauthenticated, "{error}");
    let asked = CommandStatementQuery { query: "SELECT 1".into(), transaction_id: None };
    closed(from_status(&raw.get_flight_info(descriptor(&asked)).await.unwrap_err()));
    closed(from_status(&raw.get_schema(descriptor(&CommandGetCatalogs {})).await.unwrap_err()));
    closed(prepare(&mut raw, "SELECT 1").await.unwrap_err());
    closed(put(&mut raw, &ingest("new", TableNotExistOption::Create, TableExistsOption::Fail), &[values(&[1])]).await.unwrap_err());
    // A handle and a cookie are no tokens.
    let cookie = server.key.sign(&Claim::Options(Default::default()), Duration::from_secs(60)).unwrap();
    let mut request = with_cookie(descriptor(&asked), &format!("forebay_session={}", String::from_utf8(cookie.to_vec()).unwrap()));
    let bearer = format!("Bearer {}", String::from_utf8(cookie.to_vec()).unwrap());
    request.metadata_mut().insert("authorization", bearer.parse().unwrap());
    closed(from_status(&raw.get_flight_info(request).await.unwrap_err()));
}
