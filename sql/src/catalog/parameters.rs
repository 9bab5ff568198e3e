//! Parameters of a query: `?` in order of appearance, or `$1`, `$2`, ...
//!
//! Owns: their numbers, the types that the plan expects of them, and putting values in their place. Values are literals of the plan, never text.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::ParamValues;
use datafusion::common::ScalarValue;
use datafusion::common::metadata::{FieldMetadata, ScalarAndMetadata};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};
use forebay_core::{Error, Result};

use super::output::plain_schema;
use crate::guard::to_error;

/// What is known of a query before its parameters have values.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The answer's columns; their types may still depend on the values.
    pub schema: SchemaRef,
    /// One field per parameter, named `$1`, `$2`, ...; of type null where the plan does not say what it expects.
    pub parameters: SchemaRef,
}

/// The text's tokens, with each `?` as the number of its place.
pub(super) fn numbered(sql: &str) -> Result<Vec<TokenWithSpan>> {
    let mut tokens = Vec::new();
    let (mut place, mut by_place, mut by_number) = (0usize, false, false);
    let number = |mut token: TokenWithSpan| {
        if let Token::Placeholder(name) = &mut token.token {
            if name == "?" {
                place += 1;
                by_place = true;
                *name = format!("${place}");
            } else {
                by_number = true;
                if let Some(digits) = name.strip_prefix('?') {
                    *name = format!("${digits}");
                }
            }
        }
        token
    };
    Tokenizer::new(&GenericDialect {}, sql)
        .tokenize_with_location_into_buf_with_mapper(&mut tokens, number)
        .map_err(|e| Error::bad_input(format!("bad SQL: {e}")))?;
    if by_place && by_number {
        return Err(Error::bad_input("parameters are either all `?` or all `$1`, `$2`, ..."));
    }
    Ok(tokens)
}

/// The plan's parameters in the order of their numbers.
///
/// # Errors
/// `BadInput` for a name instead of a number, or a number that is left out.
pub(super) fn schema_of(plan: &LogicalPlan) -> Result<SchemaRef> {
    let found = plan.get_parameter_fields().map_err(to_error)?;
    let mut places: BTreeMap<usize, Option<FieldRef>> = BTreeMap::new();
    for (name, field) in found {
        let place = name.strip_prefix('$').and_then(|n| n.parse().ok()).filter(|n| *n > 0).ok_or_else(|| {
            Error::bad_input(format!("the parameter `{}` has no number", name.escape_debug())).with_remedy("write `?`, or `$1`, `$2`, ...")
        })?;
        places.insert(place, field);
    }
    let mut fields = Vec::with_capacity(places.len());
    for (expected, (place, field)) in (1..).zip(places) {
        if place != expected {
            return Err(Error::bad_input(format!("the query has `${place}` and no `${expected}`")).with_remedy("number parameters from $1"));
        }
        let data_type = field.as_ref().map_or(DataType::Null, |f| f.data_type().clone());
        let metadata = field.map(|f| f.metadata().clone()).unwrap_or_default();
        fields.push(Field::new(format!("${place}"), data_type, true).with_metadata(metadata));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// The answer's columns while parameters have no values.
pub(super) fn expected(session: &SessionState, plan: &LogicalPlan) -> SchemaRef {
    // The optimizer may need a type that only the value has; the plan as it was written has columns too.
    let optimized = session.optimize(plan);
    let schema = optimized.as_ref().unwrap_or(plan).schema().as_arrow();
    plain_schema(schema, schema)
}

/// The plan with the values of one row in place of its parameters.
///
/// # Errors
/// `BadInput` unless there is exactly one value for each.
pub(super) fn bind(plan: LogicalPlan, values: Option<&RecordBatch>) -> Result<LogicalPlan> {
    let wanted = schema_of(&plan)?.fields().len();
    let given = values.map_or(0, RecordBatch::num_columns);
    if wanted != given {
        let s = if wanted == 1 { "" } else { "s" };
        return Err(Error::bad_input(format!("the query has {wanted} parameter{s}, and {given} values are bound"))
            .with_remedy("bind one value for each `?` or `$n`"));
    }
    let Some(row) = values.filter(|_| wanted > 0) else { return Ok(plan) };
    if row.num_rows() != 1 {
        return Err(Error::unsupported(format!("one query with {} rows of parameters", row.num_rows())).with_remedy("ask once per row"));
    }
    let value = |(column, field): (&arrow::array::ArrayRef, &FieldRef)| {
        let value = ScalarValue::try_from_array(column, 0).map_err(to_error)?;
        let metadata = (!field.metadata().is_empty()).then(|| FieldMetadata::new_from_field(field));
        Ok(ScalarAndMetadata::new(value, metadata))
    };
    let values = row.columns().iter().zip(row.schema_ref().fields()).map(value).collect::<Result<Vec<_>>>()?;
    plan.replace_params_with_values(&ParamValues::List(values)).map_err(to_error)
}
