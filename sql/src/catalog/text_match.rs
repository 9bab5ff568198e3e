//! `text_match(column, 'query')`: whether a row's text meets a query, as a function of a row and as a filter that an index answers.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use forebay_core::Error;
use forebay_core::text::Tokenizer;

use crate::guard::from_error;
use crate::text::{Condition, Matcher, TOKENIZER_KEY, is_text};

const NAME: &str = "text_match";

pub(super) fn text_match() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(TextMatch { signature: Signature::user_defined(Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextMatch {
    signature: Signature,
}

fn usage<T>() -> Result<T> {
    plan_err!("text_match is called as text_match(column, 'query')")
}

/// The tokenizer of a field that can be searched.
fn tokenizer(field: &Field) -> Option<Tokenizer> {
    field.metadata().get(TOKENIZER_KEY)?.parse().ok()
}

fn text(value: &ScalarValue) -> Option<&str> {
    value.try_as_str().flatten()
}

impl ScalarUDFImpl for TextMatch {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        match given {
            [column, query] if !is_text(column) && *column != DataType::Null && is_text(query) => {
                plan_err!("text_match looks at text, and its first argument is {column}")
            }
            [column, query] if is_text(query) => Ok(vec![column.clone(), query.clone()]),
            _ => usage(),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        plan_err!("{NAME} needs its arguments' fields")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let ([column, _], [_, query]) = (args.arg_fields, args.scalar_arguments) else { return usage() };
        let Some(query) = query.and_then(text) else {
            return plan_err!("text_match's query is a text in quotes, the same for all rows");
        };
        let Some(tokenizer) = tokenizer(column) else {
            let error = Error::bad_input(format!("`{}` has no text index", column.name().escape_debug()));
            return Err(from_error(error.with_remedy(format!(
                "build one with `forebay index DATASET {}`, or use LIKE or regexp_like; text_match takes the column itself, not an expression",
                column.name().escape_debug()
            ))));
        };
        // Says what is wrong with the query before anything runs.
        Condition::on_column(query, column.name(), tokenizer).map_err(from_error)?;
        // What is planned with the column's field is evaluated on batches, whose fields may have lost what they said.
        let said = [(TOKENIZER_KEY.to_owned(), tokenizer.to_string())].into();
        Ok(Arc::new(Field::new(NAME, DataType::Boolean, column.is_nullable()).with_metadata(said)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [column, ColumnarValue::Scalar(query)] = args.args.as_slice() else { return usage() };
        let (Some(query), Some(tokenizer)) = (text(query), tokenizer(&args.return_field)) else { return usage() };
        let column = column.to_array(args.number_rows)?;
        let condition = Condition::on_column(query, "", tokenizer).map_err(from_error)?;
        let found = Matcher::new(condition).matches(std::slice::from_ref(&column)).map_err(from_error)?;
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::new(found.values().clone(), column.logical_nulls()))))
    }
}

/// A filter made of nothing but `text_match`, which indexes answer.
#[derive(Debug, Clone)]
pub(super) enum TextTest {
    Match { column: String, condition: Arc<Condition>, query: String },
    All(Vec<TextTest>),
    Any(Vec<TextTest>),
}

impl TextTest {
    /// The filter as one that indexes answer, if it is one. Null counts as false, as in every filter; hence no NOT.
    pub(super) fn of(filter: &Expr, schema: &Schema) -> Option<Self> {
        match filter {
            Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == NAME => {
                let [Expr::Column(column), Expr::Literal(query, _)] = args.as_slice() else { return None };
                let (field, query) = (schema.field_with_name(&column.name).ok()?, text(query)?);
                let condition = Condition::on_column(query, &column.name, tokenizer(field)?).ok()?;
                Some(Self::Match { column: column.name.clone(), condition: Arc::new(condition), query: query.to_owned() })
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let sides = |many: fn(Vec<TextTest>) -> Self| Some(many(vec![Self::of(left, schema)?, Self::of(right, schema)?]));
                match op {
                    Operator::And => sides(Self::All),
                    Operator::Or => sides(Self::Any),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// All of them; `None` for none.
    pub(super) fn all(mut tests: Vec<Self>) -> Option<Self> {
        match tests.len() {
            0 | 1 => tests.pop(),
            _ => Some(Self::All(tests)),
        }
    }

    /// Every `text_match` in it.
    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a str, &'a Arc<Condition>)) {
        match self {
            Self::Match { column, condition, .. } => visit(column, condition),
            Self::All(tests) | Self::Any(tests) => tests.iter().for_each(|t| t.each(visit)),
        }
    }
}

impl std::fmt::Display for TextTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let join = |f: &mut std::fmt::Formatter<'_>, tests: &[Self], word: &str| {
            for (i, test) in tests.iter().enumerate() {
                write!(f, "{}{test}", if i > 0 { word } else { "" })?;
            }
            Ok(())
        };
        match self {
            Self::Match { column, query, .. } => write!(f, "{column} ~ '{}'", query.escape_debug()),
            Self::All(tests) => join(f, tests, " AND "),
            Self::Any(tests) => {
                f.write_str("(")?;
                join(f, tests, " OR ")?;
                f.write_str(")")
            }
        }
    }
}
