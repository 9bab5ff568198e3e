//! sqllogictest cases through Flight SQL, in the public suite's format (`tests/slt/*.slt`): what SELECT means.
//!
//! The cases make their tables with CREATE TABLE and INSERT, as the public suite's do. Those two are refused by a server, so they are answered
//! here: the rows become a dataset by bulk ingestion. FOREBAY_SLT names files or folders of other suites to run instead.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandStatementIngest, TableDefinitionOptions, TableExistsOption, TableNotExistOption};
use async_trait::async_trait;
use futures::TryStreamExt;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};
use tonic::transport::Channel;

use crate::support::{Home, repo};

/// A table whose rows are not yet, or no longer, what the server has.
#[derive(Debug, Default, Clone)]
struct Table {
    /// Name and SQL type.
    columns: Vec<(String, String)>,
    /// Each a list of values in the columns' order, as SQL text.
    rows: Vec<String>,
    stale: bool,
}

struct Server {
    client: FlightSqlServiceClient<Channel>,
    tables: BTreeMap<String, Table>,
}

#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl From<FlightError> for Refused {
    fn from(error: FlightError) -> Self {
        match error {
            FlightError::Tonic(status) => Self(status.message().to_owned()),
            other => Self(other.to_string()),
        }
    }
}

fn refused(what: impl Into<String>) -> Refused {
    Refused(what.into())
}

impl Server {
    async fn connect(address: &str) -> Self {
        let channel = Channel::from_shared(address.replace("grpc://", "http://")).unwrap().connect().await.unwrap();
        Self { client: FlightSqlServiceClient::new(channel), tables: BTreeMap::new() }
    }

    async fn query(&mut self, sql: &str) -> Result<Vec<RecordBatch>, Refused> {
        let info = self.client.execute(sql.to_owned(), None).await?;
        let mut batches = Vec::new();
        for endpoint in info.endpoint {
            let ticket = endpoint.ticket.ok_or_else(|| refused("an endpoint without a ticket"))?;
            let mut stream = self.client.do_get(ticket).await?;
            while let Some(batch) = stream.try_next().await? {
                batches.push(batch);
            }
            if batches.is_empty()
                && let Some(schema) = stream.schema()
            {
                batches.push(RecordBatch::new_empty(schema.clone()));
            }
        }
        Ok(batches)
    }

    /// `CREATE TABLE name (column type [constraint], ...)`
    fn create(&mut self, rest: &str) -> Result<(), Refused> {
        let (name, columns) = named_list(rest)?;
        let column = |text: &String| {
            let mut words = text.split_whitespace();
            let (name, kind) = (words.next()?.to_lowercase(), words.next()?.to_owned());
            // `DECIMAL(10, 2)` has a space in it; a constraint behind the type does not begin with a bracket or a digit.
            let more: String = words.take_while(|word| word.starts_with(|c: char| c.is_ascii_digit())).collect();
            Some((name, format!("{kind}{more}")))
        };
        let columns: Option<Vec<_>> = columns.iter().filter(|text| !is_constraint(text)).map(column).collect();
        let columns = columns.ok_or_else(|| refused(format!("CREATE TABLE {rest}")))?;
        self.tables.insert(name, Table { columns, rows: Vec::new(), stale: true });
        Ok(())
    }

    /// `INSERT INTO name [(columns)] VALUES (...), (...)`
    fn insert(&mut self, rest: &str) -> Result<u64, Refused> {
        let at = rest.to_uppercase().find("VALUES").ok_or_else(|| refused("only INSERT ... VALUES"))?;
        let (target, values) = (rest[..at].trim(), rest[at + "VALUES".len()..].trim());
        let (name, given) = if target.contains('(') { named_list(target)? } else { (target.to_lowercase(), Vec::new()) };
        let table = self.tables.get_mut(&name).ok_or_else(|| refused(format!("no table {name}")))?;
        let given: Vec<String> = given.iter().map(|column| column.to_lowercase()).collect();
        let mut count = 0;
        for row in split(values) {
            let inner = row.trim().strip_prefix('(').and_then(|r| r.strip_suffix(')')).ok_or_else(|| refused(format!("a row {row}")))?;
            let mut values = split(inner);
            if !given.is_empty() {
                let of = |(column, _): &(String, String)| given.iter().position(|g| g == column).map_or("NULL", |at| values[at].trim());
                values = table.columns.iter().map(|column| of(column).to_owned()).collect();
            }
            table.rows.push(values.join(", "));
            count += 1;
        }
        table.stale = true;
        Ok(count)
    }

    /// Brings what was inserted since to the server.
    async fn flush(&mut self) -> Result<(), Refused> {
        let stale: Vec<String> = self.tables.iter().filter(|(_, table)| table.stale).map(|(name, _)| name.clone()).collect();
        for name in stale {
            let table = self.tables[&name].clone();
            let sql = if table.rows.is_empty() {
                let casts: Vec<String> =
                    table.columns.iter().map(|(column, kind)| format!("CAST(NULL AS {kind}) AS \"{column}\"")).collect();
                format!("SELECT {} WHERE false", casts.join(", "))
            } else {
                let casts: Vec<String> = table
                    .columns
                    .iter()
                    .enumerate()
                    .map(|(i, (column, kind))| format!("CAST(column{} AS {kind}) AS \"{column}\"", i + 1))
                    .collect();
                let rows: Vec<String> = table.rows.iter().map(|row| format!("({row})")).collect();
                format!("SELECT {} FROM (VALUES {}) AS rows", casts.join(", "), rows.join(", "))
            };
            let batches = self.query(&sql).await?;
            let options =
                TableDefinitionOptions { if_not_exist: TableNotExistOption::Create.into(), if_exists: TableExistsOption::Replace.into() };
            let command = CommandStatementIngest {
                table: name.clone(),
                table_definition_options: Some(options),
                ..CommandStatementIngest::default()
            };
            self.client.execute_ingest(command, futures::stream::iter(batches.into_iter().map(Ok))).await?;
            self.tables.entry(name).and_modify(|table| table.stale = false);
        }
        Ok(())
    }
}

fn is_constraint(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default().to_uppercase();
    matches!(word.as_str(), "PRIMARY" | "UNIQUE" | "CHECK" | "FOREIGN" | "CONSTRAINT")
}

/// `name (a, b, c)`
fn named_list(text: &str) -> Result<(String, Vec<String>), Refused> {
    let wrong = || refused(format!("no list in {text}"));
    let (name, list) = text.trim().split_once('(').ok_or_else(wrong)?;
    let list = list.trim_end().strip_suffix(')').ok_or_else(wrong)?;
    Ok((name.trim().to_lowercase(), split(list).iter().map(|item| item.trim().to_owned()).collect()))
}

/// At the commas outside of brackets and quotes.
fn split(text: &str) -> Vec<String> {
    let (mut items, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in text.chars() {
        match c {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(item) = items.last_mut() {
            item.push(c);
        }
    }
    items
}

/// A value as the suite writes it: three digits of a double, `NULL`, `(empty)`.
fn rows_of(batches: &[RecordBatch]) -> Result<(Vec<DefaultColumnType>, Vec<Vec<String>>), Refused> {
    let schema = batches.first().map(RecordBatch::schema).ok_or_else(|| refused("no schema"))?;
    let types = schema.fields().iter().map(|field| match field.data_type() {
        kind if kind.is_integer() => DefaultColumnType::Integer,
        kind if kind.is_numeric() => DefaultColumnType::FloatingPoint,
        _ => DefaultColumnType::Text,
    });
    let mut rows = Vec::new();
    for batch in batches {
        let formatters: Result<Vec<_>, _> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &FormatOptions::default())).collect();
        let formatters = formatters.map_err(|e| refused(e.to_string()))?;
        for row in 0..batch.num_rows() {
            let cell = |(column, formatter): (&std::sync::Arc<dyn Array>, &ArrayFormatter<'_>)| {
                let text = formatter.value(row).to_string();
                match column.data_type() {
                    _ if column.is_null(row) => "NULL".to_owned(),
                    DataType::Float32 | DataType::Float64 => text.parse::<f64>().map_or(text, |number| format!("{number:.3}")),
                    _ if text.is_empty() => "(empty)".to_owned(),
                    _ => text,
                }
            };
            rows.push(batch.columns().iter().zip(&formatters).map(cell).collect());
        }
    }
    Ok((types.collect(), rows))
}

#[async_trait]
impl AsyncDB for Server {
    type Error = Refused;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Refused> {
        let text = sql.trim().trim_end_matches(';').trim();
        let rest = |words: &str| text.get(..words.len()).filter(|begin| begin.eq_ignore_ascii_case(words)).map(|_| &text[words.len()..]);
        if let Some(rest) = rest("CREATE TABLE ") {
            return self.create(rest).map(|()| DBOutput::StatementComplete(0));
        }
        if let Some(rest) = rest("INSERT INTO ") {
            return self.insert(rest).map(DBOutput::StatementComplete);
        }
        self.flush().await?;
        let (types, rows) = rows_of(&self.query(text).await?)?;
        Ok(DBOutput::Rows { types, rows })
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &'static str {
        "forebay"
    }
}

/// The files to run: this repository's, or those that FOREBAY_SLT names.
fn cases() -> Vec<PathBuf> {
    let named = std::env::var_os("FOREBAY_SLT").map(|paths| std::env::split_paths(&paths).collect());
    let mut files = Vec::new();
    for path in named.unwrap_or_else(|| vec![repo().join("tests/slt")]) {
        if !path.is_dir() {
            files.push(path);
            continue;
        }
        let listed = std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let is_case = |file: &Path| file.extension().is_some_and(|e| e == "slt" || e == "test");
        files.extend(listed.flatten().map(|entry| entry.path()).filter(|file| is_case(file)));
    }
    files.sort();
    files
}

#[test]
fn select_means_what_the_cases_say() {
    let files = cases();
    assert!(files.len() >= 10 || std::env::var_os("FOREBAY_SLT").is_some(), "{files:?}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut failed = Vec::new();
    // Files that name the same tables replace each other's.
    let home = Home::new();
    let server = home.serve(&[]);
    for file in files {
        let mut runner = Runner::new(|| async { Ok(Server::connect(&server.address).await) });
        if std::env::var_os("FOREBAY_SLT").is_none() {
            // Other suites are not as careful with types as engines are.
            runner.with_column_validator(sqllogictest::strict_column_validator);
        }
        if let Err(error) = runtime.block_on(runner.run_file_async(&file)) {
            failed.push(format!("{}", error.display(false)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
