//! What the server can do, in the codes and types that drivers know.
//!
//! Every code that the protocol defines has a value: some drivers look one up without asking whether it is there.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder};
use arrow_flight::sql::{
    Nullable, Searchable, SqlInfo, SqlNullOrdering, SqlOuterJoinsSupportLevel, SqlSupportedCaseSensitivity, SqlSupportedTransaction,
    XdbcDataType, XdbcDatetimeSubcode,
};
use forebay_core::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn failed(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("describing the server: {error}"))
}

pub(super) fn schema() -> SchemaRef {
    Arc::new(SqlInfoDataBuilder::schema().clone())
}

/// The values of these codes, or of all; unknown codes have no row.
pub(super) fn infos(codes: &[u32], handle_term: Duration) -> Result<RecordBatch> {
    all(handle_term)?.record_batch(codes.iter().copied()).map_err(failed)
}

/// Bits of a mask.
fn mask(bits: &[i32]) -> i32 {
    bits.iter().fold(0, |mask, bit| mask | 1 << bit)
}

fn all(handle_term: Duration) -> Result<SqlInfoData> {
    let mut info = SqlInfoDataBuilder::new();
    server(&mut info, handle_term);
    syntax(&mut info);
    support(&mut info);
    info.build().map_err(failed)
}

fn server(info: &mut SqlInfoDataBuilder, handle_term: Duration) {
    info.append(SqlInfo::FlightSqlServerName, "Forebay");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, arrow::ARROW_VERSION);
    // SQL can't change anything; bulk ingestion, which is not SQL, can.
    info.append(SqlInfo::FlightSqlServerReadOnly, true);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    info.append(SqlInfo::FlightSqlServerSubstraitMinVersion, "");
    info.append(SqlInfo::FlightSqlServerSubstraitMaxVersion, "");
    info.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, true);
    info.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, false);
    // Milliseconds that the handle of a prepared statement lives.
    info.append(SqlInfo::FlightSqlServerStatementTimeout, i32::try_from(handle_term.as_millis()).unwrap_or(i32::MAX));
    info.append(SqlInfo::FlightSqlServerTransactionTimeout, 0);
}

fn syntax(info: &mut SqlInfoDataBuilder) {
    for code in [SqlInfo::SqlDdlCatalog, SqlInfo::SqlDdlSchema, SqlInfo::SqlDdlTable] {
        info.append(code, false);
    }
    info.append(SqlInfo::SqlIdentifierCase, SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32);
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    // There is no word for "as written".
    info.append(SqlInfo::SqlQuotedIdentifierCase, SqlSupportedCaseSensitivity::SqlCaseSensitivityUnknown as i32);
    info.append(SqlInfo::SqlAllTablesAreSelectable, true);
    info.append(SqlInfo::SqlNullOrdering, SqlNullOrdering::SqlNullsSortedHigh as i32);
    for code in [
        SqlInfo::SqlKeywords,
        SqlInfo::SqlNumericFunctions,
        SqlInfo::SqlStringFunctions,
        SqlInfo::SqlSystemFunctions,
        SqlInfo::SqlDatetimeFunctions,
    ] {
        info.append(code, Vec::<String>::new());
    }
    info.append(SqlInfo::SqlSearchStringEscape, "\\");
    info.append(SqlInfo::SqlExtraNameCharacters, "");
    info.append(SqlInfo::SqlSupportsConvert, BTreeMap::<i32, Vec<i32>>::new());
    info.append(SqlInfo::SqlSupportedGroupBy, mask(&[0, 1]));
    info.append(SqlInfo::SqlSupportedGrammar, mask(&[0, 1]));
    info.append(SqlInfo::SqlAnsi92SupportedLevel, mask(&[0]));
    info.append(SqlInfo::SqlOuterJoinsSupportLevel, SqlOuterJoinsSupportLevel::SqlFullOuterJoins as i32);
    info.append(SqlInfo::SqlSchemaTerm, "schema");
    info.append(SqlInfo::SqlProcedureTerm, "procedure");
    info.append(SqlInfo::SqlCatalogTerm, "catalog");
    info.append(SqlInfo::SqlCatalogAtStart, true);
    info.append(SqlInfo::SqlSupportedSubqueries, mask(&[0, 1, 2]));
    info.append(SqlInfo::SqlSupportedUnions, mask(&[0, 1]));
    // Only "none", and results that are read once from front to back.
    info.append(SqlInfo::SqlDefaultTransactionIsolation, 0);
    info.append(SqlInfo::SqlSupportedTransactionsIsolationLevels, mask(&[0]));
    info.append(SqlInfo::SqlSupportedResultSetTypes, mask(&[1]));
    info.append(SqlInfo::SqlSupportedConcurrenciesForResultSetForwardOnly, mask(&[1]));
    for code in [
        SqlInfo::SqlSchemasSupportedActions,
        SqlInfo::SqlCatalogsSupportedActions,
        SqlInfo::SqlSupportedPositionedCommands,
        SqlInfo::SqlSupportedConcurrenciesForResultSetUnspecified,
        SqlInfo::SqlSupportedConcurrenciesForResultSetScrollSensitive,
        SqlInfo::SqlSupportedConcurrenciesForResultSetScrollInsensitive,
    ] {
        info.append(code, 0);
    }
}

fn support(info: &mut SqlInfoDataBuilder) {
    for code in [
        SqlInfo::SqlSupportsColumnAliasing,
        SqlInfo::SqlNullPlusNullIsNull,
        SqlInfo::SqlSupportsTableCorrelationNames,
        SqlInfo::SqlSupportsExpressionsInOrderBy,
        SqlInfo::SqlSupportsOrderByUnrelated,
        SqlInfo::SqlSupportsLikeEscapeClause,
        SqlInfo::SqlSupportsNonNullableColumns,
        SqlInfo::SqlCorrelatedSubqueriesSupported,
        SqlInfo::SqlMaxRowSizeIncludesBlobs,
    ] {
        info.append(code, true);
    }
    for code in [
        SqlInfo::SqlSupportsDifferentTableCorrelationNames,
        SqlInfo::SqlSupportsIntegrityEnhancementFacility,
        SqlInfo::SqlSelectForUpdateSupported,
        SqlInfo::SqlStoredProceduresSupported,
        SqlInfo::SqlTransactionsSupported,
        SqlInfo::SqlDataDefinitionCausesTransactionCommit,
        SqlInfo::SqlDataDefinitionsInTransactionsIgnored,
        SqlInfo::SqlBatchUpdatesSupported,
        SqlInfo::SqlSavepointsSupported,
        SqlInfo::SqlNamedParametersSupported,
        SqlInfo::SqlLocatorsUpdateCopy,
        SqlInfo::SqlStoredFunctionsUsingCallSyntaxSupported,
    ] {
        info.append(code, false);
    }
    // No limit, or none that is known; names of datasets have one.
    for code in (SqlInfo::SqlMaxBinaryLiteralLength as u32)..=(SqlInfo::SqlMaxUsernameLength as u32) {
        if code != SqlInfo::SqlMaxRowSizeIncludesBlobs as u32 {
            info.append(code, 0i64);
        }
    }
    info.append(SqlInfo::SqlMaxTableNameLength, 63i64);
}

/// The types of SQL, all or those of one code.
pub(super) fn types(data_type: Option<i32>) -> Result<RecordBatch> {
    let mut types = XdbcTypeInfoDataBuilder::new();
    numbers().into_iter().chain(others()).for_each(|info| types.append(info));
    let types: XdbcTypeInfoData = types.build().map_err(failed)?;
    types.record_batch(data_type).map_err(failed)
}

fn named(name: &str, data_type: XdbcDataType) -> XdbcTypeInfo {
    XdbcTypeInfo {
        type_name: name.to_owned(),
        local_type_name: Some(name.to_owned()),
        data_type,
        sql_data_type: data_type,
        nullable: Nullable::NullabilityNullable,
        searchable: Searchable::Full,
        ..XdbcTypeInfo::default()
    }
}

fn numbers() -> Vec<XdbcTypeInfo> {
    // Digits for exact numbers, bits for the others.
    let number = |name, data_type, size, radix, unsigned| XdbcTypeInfo {
        column_size: Some(size),
        num_prec_radix: Some(radix),
        unsigned_attribute: Some(unsigned),
        auto_increment: Some(false),
        ..named(name, data_type)
    };
    let whole = |name, data_type, digits, unsigned| XdbcTypeInfo {
        minimum_scale: Some(0),
        maximum_scale: Some(0),
        ..number(name, data_type, digits, 10, unsigned)
    };
    let decimal = XdbcTypeInfo {
        create_params: Some(vec!["precision".to_owned(), "scale".to_owned()]),
        minimum_scale: Some(0),
        maximum_scale: Some(38),
        ..number("DECIMAL", XdbcDataType::XdbcDecimal, 38, 10, false)
    };
    vec![
        whole("TINYINT", XdbcDataType::XdbcTinyint, 3, false),
        whole("SMALLINT", XdbcDataType::XdbcSmallint, 5, false),
        whole("INTEGER", XdbcDataType::XdbcInteger, 10, false),
        whole("BIGINT", XdbcDataType::XdbcBigint, 19, false),
        whole("TINYINT UNSIGNED", XdbcDataType::XdbcTinyint, 3, true),
        whole("SMALLINT UNSIGNED", XdbcDataType::XdbcSmallint, 5, true),
        whole("INTEGER UNSIGNED", XdbcDataType::XdbcInteger, 10, true),
        whole("BIGINT UNSIGNED", XdbcDataType::XdbcBigint, 20, true),
        number("REAL", XdbcDataType::XdbcReal, 24, 2, false),
        number("DOUBLE", XdbcDataType::XdbcDouble, 53, 2, false),
        decimal,
    ]
}

fn others() -> Vec<XdbcTypeInfo> {
    let quoted = |prefix: &str, info: XdbcTypeInfo| XdbcTypeInfo {
        literal_prefix: Some(format!("{prefix}'")),
        literal_suffix: Some("'".to_owned()),
        ..info
    };
    let time = |name: &str, data_type, size, subcode| {
        let info = XdbcTypeInfo { column_size: Some(size), ..named(name, data_type) };
        let prefix = format!("{name} ");
        quoted(&prefix, XdbcTypeInfo { sql_data_type: XdbcDataType::XdbcDatetime, datetime_subcode: Some(subcode), ..info })
    };
    vec![
        XdbcTypeInfo { column_size: Some(1), ..named("BOOLEAN", XdbcDataType::XdbcBit) },
        quoted("", XdbcTypeInfo { case_sensitive: true, column_size: Some(i32::MAX), ..named("VARCHAR", XdbcDataType::XdbcVarchar) }),
        quoted("X", XdbcTypeInfo { column_size: Some(i32::MAX), ..named("BYTEA", XdbcDataType::XdbcVarbinary) }),
        // ODBC's code for a date is the one that the protocol calls a year.
        time("DATE", XdbcDataType::XdbcDate, 10, XdbcDatetimeSubcode::XdbcSubcodeYear),
        time("TIME", XdbcDataType::XdbcTime, 18, XdbcDatetimeSubcode::XdbcSubcodeTime),
        time("TIMESTAMP", XdbcDataType::XdbcTimestamp, 29, XdbcDatetimeSubcode::XdbcSubcodeTimestamp),
    ]
}
