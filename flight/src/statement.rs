//! What SQL clients ask: statements with their values and session, and what there is to ask about.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// Bytes that the values of one statement may have: they travel in every handle and ticket of it.
pub const MAX_PARAMETERS: usize = 1 << 20;

/// What a client has set for its statements. Everything only narrows what the server allows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionOptions {
    /// The only catalog there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<String>,
    /// Where tables without a schema are looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Seconds from a statement's start to its last row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Rows of one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_limit: Option<u64>,
}

impl SessionOptions {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// One SQL statement; serialized, it is all that another node needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    pub sql: String,
    #[serde(default, skip_serializing_if = "SessionOptions::is_default")]
    pub session: SessionOptions,
    /// One row as an Arrow stream, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parameters: Option<String>,
}

impl Statement {
    pub fn new(sql: impl Into<String>, session: SessionOptions) -> Self {
        Self { sql: sql.into(), session, parameters: None }
    }

    /// The same statement in another session.
    #[must_use]
    pub fn in_session(self, session: SessionOptions) -> Self {
        Self { session, ..self }
    }

    /// The same statement with values for its parameters: a batch of one row.
    ///
    /// # Errors
    /// `ResourceExhausted` for values of over [`MAX_PARAMETERS`] bytes.
    pub fn with_parameters(mut self, row: &RecordBatch) -> Result<Self> {
        let encode = |e| Error::internal(format!("keeping the values of a statement: {e}"));
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::try_new(&mut bytes, row.schema_ref()).map_err(encode)?;
        writer.write(row).and_then(|()| writer.finish()).map_err(encode)?;
        drop(writer);
        if bytes.len() > MAX_PARAMETERS {
            let message = format!("a statement's values have {} bytes; the limit is {MAX_PARAMETERS}", bytes.len());
            return Err(Error::new(Kind::ResourceExhausted, message).with_remedy("write a dataset and join it"));
        }
        self.parameters = Some(BASE64.encode(&bytes));
        Ok(self)
    }

    /// The values, one row, where any were bound.
    ///
    /// # Errors
    /// `BadInput` for what [`Statement::with_parameters`] did not make.
    pub fn parameters(&self) -> Result<Option<RecordBatch>> {
        let Some(text) = &self.parameters else { return Ok(None) };
        let unreadable = |what: String| Error::bad_input(format!("the values of a statement can't be read: {what}"));
        let bytes = BASE64.decode(text).map_err(|e| unreadable(e.to_string()))?;
        let mut reader = StreamReader::try_new(bytes.as_slice(), None).map_err(|e| unreadable(e.to_string()))?;
        reader.next().transpose().map_err(|e| unreadable(e.to_string()))
    }
}

/// What is known of a statement before its parameters have values.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub schema: SchemaRef,
    /// One field per parameter; of type null where any will do.
    pub parameters: SchemaRef,
}

/// The names that everything else is found under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub catalog: String,
    /// The first one is where tables without a schema are looked for.
    pub schemas: Vec<String>,
    /// Kinds of tables, as [`TableName::kind`] has them.
    pub kinds: Vec<String>,
}

/// One table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    pub schema: String,
    pub name: String,
    pub kind: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, ListArray, StringArray};
    use arrow::datatypes::Int32Type;
    use std::sync::Arc;

    #[test]
    fn values_survive_the_journey() {
        let row = RecordBatch::try_from_iter(vec![
            ("0", Arc::new(Int64Array::from(vec![7])) as ArrayRef),
            ("1", Arc::new(StringArray::from(vec![None::<&str>]))),
            ("2", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None])]))),
        ])
        .unwrap();
        let statement = Statement::new("SELECT ?", SessionOptions::default()).with_parameters(&row).unwrap();
        let json = serde_json::to_string(&statement).unwrap();
        assert!(!json.contains("session"), "{json}");
        let read: Statement = serde_json::from_str(&json).unwrap();
        assert_eq!(read.parameters().unwrap(), Some(row));
        let large = RecordBatch::try_from_iter(vec![("0", Arc::new(StringArray::from(vec!["x".repeat(2 << 20)])) as ArrayRef)]).unwrap();
        assert_eq!(read.with_parameters(&large).unwrap_err().kind, Kind::ResourceExhausted);
    }
}
