//! SELECT over datasets and system tables.
//!
//! Owns: what a query may name (a dataset, `"name@v3"`, a view, `system.*`), its limits, and its life from text to a stream of batches. Nothing else is
//! reachable from a query: there are no files, URLs, settings, tables to create or functions with side effects. A query plans against pinned
//! versions and runs on threads of its own; dropping its stream stops it. Must not know: gRPC, who asks.

mod clauses;
mod comparisons;
mod constants;
mod information;
mod limits;
mod output;
mod parameters;
mod prune;
mod request;
mod resolve;
mod run;
pub(crate) mod scan;
mod search;
mod search_table;
mod select;
mod source;
mod system;
mod table;
mod text_match;
mod text_rows;
mod view_shape;
mod views;
mod weight;
pub(crate) mod yielding;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::TableReference;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{LogicalPlan, ScalarUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SQLOptions;
use datafusion::sql::parser::{DFParserBuilder, Statement as DfStatement};
use datafusion::sql::sqlparser::ast::Statement;
use forebay_core::{Error, Result};
use forebay_storage::bundle::BundleCache;
use forebay_storage::root::Root;
use futures::stream::BoxStream;

use crate::distributed::{Attempts, Peers, PlanService, divided};
use crate::functions::capped::{concat_operator, harden};
use crate::functions::{is_random, pure_functions};
use crate::guard::{TextLimits, check_text, to_error};
use crate::session::{self, Room};
use crate::system::SystemTables;
use crate::text::TextIndexes;

pub use information::{CATALOG, KINDS, SCHEMAS, TableEntry};
pub use limits::QueryLimits;
pub use parameters::Prepared;
pub use request::Request;
pub use select::select_rows;
pub use source::SourceQuery;
pub use views::ViewMeaning;

use resolve::Tables;
use run::Runner;
use search::SearchCall;
use views::Opened;

/// A running query: its columns and its rows.
pub struct QueryStream {
    pub schema: SchemaRef,
    /// Ends with an error if a limit was reached or a row failed. Dropping it stops the query and frees what it holds.
    pub stream: BoxStream<'static, Result<RecordBatch>>,
}

impl fmt::Debug for QueryStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryStream").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// A statement and what it names.
struct Named {
    statement: DfStatement,
    names: Vec<TableReference>,
    /// The calls of `search` among them.
    searches: Vec<SearchCall>,
    /// Of its text.
    operators: usize,
    bytes: usize,
}

/// Answers SQL over one root. Clones share threads and limits.
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

struct Inner {
    root: Root,
    system: Arc<dyn SystemTables>,
    limits: QueryLimits,
    session: SessionState,
    runner: Runner,
    indexes: TextIndexes,
    /// Other processes that take parts of queries; set at most once.
    plans: OnceLock<PlanService>,
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

impl Catalog {
    /// Starts the query threads. Fails if the system gives none.
    pub fn new(root: Root, system: Arc<dyn SystemTables>, limits: QueryLimits) -> Result<Self> {
        Self::with_cache(root, system, limits, None)
    }

    /// As [`Catalog::new`], with a cache for the text indexes of a root that is far away.
    pub fn with_cache(root: Root, system: Arc<dyn SystemTables>, limits: QueryLimits, cache: Option<BundleCache>) -> Result<Self> {
        let room = Room { memory: Some(limits.memory), spill: limits.spill };
        let runtime = session::runtime(room).map_err(to_error)?;
        let mut config = session::config(limits.partitions);
        config.options_mut().catalog.default_catalog = CATALOG.to_owned();
        config.options_mut().catalog.default_schema = resolve::PUBLIC.to_owned();
        let session = session::state(config, runtime, functions());
        let runner = Runner::new(&limits)?;
        let indexes = TextIndexes::new(root.clone(), cache);
        Ok(Self { inner: Arc::new(Inner { root, system, limits, session, runner, indexes, plans: OnceLock::new() }) })
    }

    /// Divides queries among these workers from now on. What is returned takes parts of their queries, where this process is one of them.
    ///
    /// # Errors
    /// `Unavailable` while queries are shutting down.
    pub fn use_peers(&self, peers: Arc<dyn Peers>) -> Result<PlanService> {
        let inner = &self.inner;
        let functions = session::scalars(functions().into_iter().chain([concat_operator()]).collect());
        let (runtime, partitions) = (inner.session.runtime_env().clone(), inner.limits.partitions);
        let service = PlanService::new(inner.root.clone(), peers, runtime, functions, partitions, inner.runner.threads()?);
        Ok(inner.plans.get_or_init(|| service).clone())
    }

    /// Plans a SELECT or EXPLAIN and starts it. It runs a few batches ahead of its reader and then waits.
    pub async fn query(&self, sql: &str) -> Result<QueryStream> {
        self.ask(&Request::new(sql)).await
    }

    /// As [`Catalog::query`], with values for its parameters and limits of its own.
    pub async fn ask(&self, request: &Request) -> Result<QueryStream> {
        let (session, logical) = self.bound(request).await?;
        let Some(service) = self.inner.plans.get().filter(|_| self.inner.limits.distributed).cloned() else {
            let context = session.task_ctx();
            let (plan, schema) = self.plan(move || physical(&session, &logical)).await?;
            return Ok(self.inner.runner.run(plan, context, schema, None, request));
        };
        let least = self.inner.limits.distributed_size;
        let (first, attempts) = self
            .plan(move || {
                let first = divided(session.clone(), &logical, service.workers(), least, &service)?;
                let attempts = Attempts::new(service, session, logical, least, &first);
                Ok((first, attempts))
            })
            .await?;
        Ok(self.inner.runner.run(first.plan, first.session.task_ctx(), first.schema, attempts, request))
    }

    /// The columns that [`Catalog::query`] would answer with, without running anything.
    pub async fn schema(&self, sql: &str) -> Result<SchemaRef> {
        self.answer(&Request::new(sql)).await
    }

    /// The columns that [`Catalog::ask`] would answer with, without running anything.
    pub async fn answer(&self, request: &Request) -> Result<SchemaRef> {
        let (session, plan) = self.bound(request).await?;
        self.plan(move || physical(&session, &plan).map(|(_, schema)| schema)).await
    }

    /// What a query answers and which parameters (`?` or `$1`) it has, as far as that is known before they have values.
    pub async fn prepare(&self, request: &Request) -> Result<Prepared> {
        let (session, plan) = self.logical(request).await?;
        self.plan(move || {
            let parameters = parameters::schema_of(&plan)?;
            let schema = if parameters.fields().is_empty() { physical(&session, &plan)?.1 } else { parameters::expected(&session, &plan) };
            Ok(Prepared { schema, parameters })
        })
        .await
    }

    /// Whether a query names any dataset; one that does not is answered from the system tables alone.
    pub async fn reads_datasets(&self, request: &Request) -> Result<bool> {
        let named = self.names(request).await?;
        let schema = request.schema.as_deref();
        Ok(named.names.iter().any(|name| !matches!(name.schema().or(schema), Some(resolve::SYSTEM | information::INFORMATION_SCHEMA))))
    }

    /// Every table, by schema and name: datasets, views, system tables, `information_schema`.
    pub async fn tables(&self) -> Result<Vec<TableEntry>> {
        information::entries(self).await
    }

    /// The columns of one table.
    ///
    /// # Errors
    /// `NotFound` where there is none of this name.
    pub async fn columns(&self, schema: &str, table: &str) -> Result<SchemaRef> {
        let name = TableReference::partial(schema, table);
        let opened = Opened::table(self, schema, table).await?;
        let tables = Tables::resolve(self, std::slice::from_ref(&name), &[], None, &opened).await?;
        tables.schema_of(&name)
    }

    /// Text to its one statement, and what it names.
    async fn names(&self, request: &Request) -> Result<Named> {
        let limits = self.text_limits();
        let text = request.sql.clone();
        let session = self.session(request)?;
        self.plan(move || {
            let operators = check_text(&text, limits)?;
            let (statement, searches) = search::extract(parse(&text)?)?;
            let names = session.resolve_table_references(&statement).map_err(to_error)?;
            Ok(Named { statement, names, searches, operators, bytes: text.len() })
        })
        .await
    }

    /// The session of a request, without tables.
    fn session(&self, request: &Request) -> Result<SessionState> {
        let mut session = self.inner.session.clone();
        if let Some(schema) = &request.schema {
            resolve::check_schema(schema)?;
            session.config_mut().options_mut().catalog.default_schema.clone_from(schema);
        }
        Ok(session)
    }

    /// Text to a verified plan, with the tables that it names and no others.
    async fn logical(&self, request: &Request) -> Result<(SessionState, LogicalPlan)> {
        let named = self.names(request).await?;
        let schema = request.schema.as_deref();
        let opened = Opened::of(self, &named, schema, &request.pins).await?;
        let tables = Tables::resolve(self, &named.names, &named.searches, schema, &opened).await?;
        let session = tables.into_session(self.session(request)?)?;
        self.plan(move || {
            let plan = futures::executor::block_on(session.statement_to_plan(named.statement)).map_err(unknown_function)?;
            options().verify_plan(&plan).map_err(to_error)?;
            if opened.has_views() {
                views::check_size(&plan)?;
            }
            comparisons::check_comparisons(&plan)?;
            weight::check_weight(&plan)?;
            Ok((session, harden(plan).map_err(to_error)?))
        })
        .await
    }

    /// As [`Catalog::logical`], with every parameter replaced by its value.
    async fn bound(&self, request: &Request) -> Result<(SessionState, LogicalPlan)> {
        let (session, plan) = self.logical(request).await?;
        let values = request.parameters.clone();
        self.plan(move || Ok((session, parameters::bind(plan, values.as_ref())?))).await
    }

    /// Plans on a thread of its own, in turn and within the deadline.
    async fn plan<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.inner.runner.plan(work).await
    }

    fn text_limits(&self) -> TextLimits {
        TextLimits { bytes: self.inner.limits.sql_bytes, operators: self.inner.limits.operators }
    }
}

/// What queries may call beside DataFusion's own.
fn functions() -> Vec<Arc<ScalarUDF>> {
    pure_functions().into_iter().chain([text_match::text_match()]).collect()
}

fn options() -> SQLOptions {
    SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false)
}

/// One SELECT, or EXPLAIN of one; SHOW TABLES and DESCRIBE are short for SELECTs. Everything else is refused by its name before it is planned.
fn parse(text: &str) -> Result<DfStatement> {
    let tokens = parameters::numbered(text)?;
    let mut statements = DFParserBuilder::new(tokens).build().and_then(|mut p| p.parse_statements()).map_err(to_error)?;
    let (Some(statement), true) = (statements.pop_front(), statements.is_empty()) else {
        return Err(Error::bad_input("a query is exactly one statement"));
    };
    if let Some(query) = information::as_query(&statement) {
        return parse(&query);
    }
    check_statement(&statement)?;
    Ok(statement)
}

fn check_statement(statement: &DfStatement) -> Result<()> {
    match statement {
        DfStatement::Statement(inner) if matches!(inner.as_ref(), Statement::Query(_)) => clauses::check_clauses(inner),
        DfStatement::Explain(explain) => check_statement(&explain.statement),
        other => {
            let word = other.to_string().split_whitespace().next().unwrap_or("nothing").to_uppercase();
            Err(Error::unsupported(format!("{word} in a query"))
                .with_remedy("queries are SELECT or EXPLAIN; pipelines and `write` change data"))
        }
    }
}

pub(crate) fn physical(session: &SessionState, plan: &LogicalPlan) -> Result<(Arc<dyn ExecutionPlan>, SchemaRef)> {
    let optimized = session.optimize(plan).map_err(to_error)?;
    constants::check_constants(&optimized)?;
    let physical = futures::executor::block_on(session.query_planner().create_physical_plan(&optimized, session)).map_err(to_error)?;
    let schema = output::plain_schema(optimized.schema().as_arrow(), &physical.schema());
    Ok((physical, schema))
}

/// Says of a random function why it is unknown here.
fn unknown_function(error: datafusion::common::DataFusionError) -> Error {
    let error = to_error(error);
    let quoted = error.message.split('\'').nth(1).map(str::to_lowercase);
    match quoted {
        Some(name) if error.message.starts_with("Invalid function") && is_random(&name) => {
            Error::bad_input(format!("`{name}` draws from a row's key in a step of a pipeline; queries have no random functions"))
        }
        _ => error,
    }
}
