//! Views in queries: a view's text is planned like a query of its own, with the tables that it names and no others, and its plan stands in the
//! place of its name.
//!
//! A view cannot make more of a query than could be written out: operators and text of all views that a query reaches count as its own, views
//! of views end at a depth, and the parts of the whole plan are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::catalog::view::ViewTable;
use datafusion::common::TableReference;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as DfStatement;
use forebay_core::ids::ViewName;
use forebay_core::view::{View, ViewSelection};
use forebay_core::{Error, Kind, Result};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::views;
use futures::future::BoxFuture;

use super::request::Pins;
use super::resolve::{self, Tables};
use super::scan::RowGroupScan;
use super::view_shape::{Shape, shape_of};
use super::{CATALOG, Catalog, Named, Request, comparisons, options, parameters, physical, select, unknown_function, weight};
use crate::functions::capped::harden;
use crate::guard::{from_error, to_error};

/// Views of views, from the query down.
const DEPTH: usize = 16;
/// Parts of a plan with its views written out.
const NODES: usize = 2_000;

/// The datasets and views that a query reaches. Each is opened once: wherever its name stands, it is the same version.
#[derive(Debug, Default)]
pub(super) struct Opened {
    datasets: BTreeMap<String, Arc<DatasetVersion>>,
    views: BTreeMap<String, Arc<dyn TableProvider>>,
    /// Versions of names that say none.
    pins: Pins,
    operators: usize,
    bytes: usize,
}

/// A text whose tables are being opened: the query's, or a view's.
struct Reading {
    view: Option<(View, Named)>,
    /// Names still to be looked up.
    names: Vec<String>,
}

impl Opened {
    /// Opens what a query names in the schema of datasets and views. Names that nothing has are left out.
    pub(super) async fn of(catalog: &Catalog, query: &Named, schema: Option<&str>, pins: &Pins) -> Result<Self> {
        let mut opened = Self { operators: query.operators, bytes: query.bytes, pins: pins.clone(), ..Self::default() };
        // Views of views are opened one after the other, not one within the other: their depth takes no stack.
        let mut open = vec![Reading { view: None, names: public_names(query, schema) }];
        while let Some(reading) = open.last_mut() {
            let step = match reading.names.pop() {
                Some(name) => opened.look_up(catalog, &name, &open).await.map(|found| open.extend(found)),
                None => match open.pop().and_then(|reading| reading.view) {
                    Some((view, named)) => {
                        let name = view.name.clone();
                        opened.plan(catalog, view, named).await.map_err(|e| e.context(format!("view `{name}`")))
                    }
                    None => Ok(()),
                },
            };
            step.map_err(|error| open.iter().rev().filter_map(name_of).fold(error, |error, name| error.context(format!("view `{name}`"))))?;
        }
        Ok(opened)
    }

    /// Opens one table.
    pub(super) async fn table(catalog: &Catalog, schema: &str, table: &str) -> Result<Self> {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let named = catalog.names(&Request::new(format!("SELECT 1 FROM {}.{}", quoted(schema), quoted(table)))).await?;
        Self::of(catalog, &named, None, &Pins::default()).await
    }

    pub(super) fn dataset(&self, name: &str) -> Option<&Arc<DatasetVersion>> {
        self.datasets.get(name)
    }

    pub(super) fn view(&self, name: &str) -> Option<&Arc<dyn TableProvider>> {
        self.views.get(name)
    }

    pub(super) fn has_views(&self) -> bool {
        !self.views.is_empty()
    }

    /// Opens a dataset, or begins with a view that is not opened yet.
    async fn look_up(&mut self, catalog: &Catalog, name: &str, open: &[Reading]) -> Result<Option<Reading>> {
        if self.datasets.contains_key(name) || self.views.contains_key(name) {
            return Ok(None);
        }
        if let Some(version) = resolve::find(&catalog.inner.root, name, &self.pins).await? {
            self.datasets.insert(name.to_owned(), version);
            return Ok(None);
        }
        let Some(view) = catalog.view_of(name).await? else { return Ok(None) };
        let path: Vec<&ViewName> = open.iter().filter_map(name_of).collect();
        let chain = || path.iter().copied().chain([&view.name]).map(ViewName::as_str).collect::<Vec<_>>().join(" -> ");
        if path.contains(&&view.name) {
            return Err(Error::bad_input(format!("views read each other in a circle: {}", chain())).with_remedy("drop one of them"));
        }
        if path.len() >= DEPTH {
            return Err(Error::new(Kind::ResourceExhausted, format!("views of views are {DEPTH} deep at most: {}", chain()))
                .with_remedy("write some of them out"));
        }
        let named = catalog.names(&Request::new(&view.sql)).await.map_err(|e| e.context(format!("view `{}`", view.name)))?;
        self.add(&named, catalog)?;
        Ok(Some(Reading { names: public_names(&named, None), view: Some((view, named)) }))
    }

    /// Counts a view's text as the query's own.
    fn add(&mut self, view: &Named, catalog: &Catalog) -> Result<()> {
        self.operators += view.operators;
        self.bytes += view.bytes;
        let limits = &catalog.inner.limits;
        let beyond = |what: String| Err(Error::new(Kind::ResourceExhausted, what).with_remedy("ask less at once, or write a dataset"));
        if self.operators > limits.operators {
            return beyond(format!(
                "the query and the views that it reads have {} operators and connectives; the limit is {}",
                self.operators, limits.operators
            ));
        }
        if self.bytes > limits.sql_bytes {
            return beyond(format!(
                "the query and the views that it reads are {} bytes long; the limit is {}",
                self.bytes, limits.sql_bytes
            ));
        }
        Ok(())
    }

    /// Plans a view whose tables are all open.
    async fn plan(&mut self, catalog: &Catalog, view: View, named: Named) -> Result<()> {
        let body = plan_body(catalog, &view.sql, named, self).await?;
        let table: Arc<dyn TableProvider> = Arc::new(ViewTable::new(body.plan, Some(view.sql)));
        self.views.insert(view.name.0, table);
        Ok(())
    }
}

fn name_of(reading: &Reading) -> Option<&ViewName> {
    reading.view.as_ref().map(|(view, _)| &view.name)
}

/// The names of datasets and views in a text.
fn public_names(named: &Named, schema: Option<&str>) -> Vec<String> {
    let own = |name: &&TableReference| {
        let catalog = matches!(name.catalog(), None | Some(CATALOG));
        catalog && name.schema().or(schema).unwrap_or(resolve::PUBLIC) == resolve::PUBLIC
    };
    let tables = named.names.iter().filter(own).map(TableReference::table);
    let tables = tables.filter(|table| !named.searches.iter().any(|call| call.table == *table)).map(str::to_owned);
    tables.chain(named.searches.iter().map(|call| call.dataset.clone())).collect()
}

struct Body {
    statement: DfStatement,
    tables: Vec<TableReference>,
    plan: LogicalPlan,
}

/// Plans a view's text as a query of its own.
async fn plan_body(catalog: &Catalog, sql: &str, named: Named, opened: &Opened) -> Result<Body> {
    if !matches!(named.statement, DfStatement::Statement(_)) {
        return Err(Error::bad_input("a view is a SELECT, not an EXPLAIN"));
    }
    let tables = Tables::resolve(catalog, &named.names, &named.searches, None, opened).await?;
    let session = tables.into_session(catalog.session(&Request::new(sql))?)?;
    let Named { statement, names, searches, .. } = named;
    let mut names: Vec<TableReference> = names.into_iter().filter(|n| !searches.iter().any(|call| call.table == n.table())).collect();
    names.extend(searches.iter().map(|call| TableReference::bare(call.dataset.as_str())));
    catalog
        .plan(move || {
            let plan = futures::executor::block_on(session.statement_to_plan(statement.clone())).map_err(unknown_function)?;
            options().verify_plan(&plan).map_err(to_error)?;
            if !parameters::schema_of(&plan)?.fields().is_empty() {
                return Err(Error::bad_input("a view has no parameters").with_remedy("write the value itself"));
            }
            check_size(&plan)?;
            comparisons::check_comparisons(&plan)?;
            weight::check_weight(&plan)?;
            Ok(Body { statement, tables: names, plan })
        })
        .await
}

/// Refuses a plan that views made too large. Each use of a view is a copy of its plan.
pub(super) fn check_size(plan: &LogicalPlan) -> Result<()> {
    let mut nodes = 0usize;
    let counted = plan.apply_with_subqueries(|_| {
        nodes += 1;
        if nodes > NODES {
            return Err(from_error(
                Error::new(Kind::ResourceExhausted, format!("the query has over {NODES} parts when its views are written out"))
                    .with_remedy("use views of views less often in one query"),
            ));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    counted.map(drop).map_err(to_error)
}

/// What a view's text means as things are.
#[derive(Debug, Clone)]
pub struct ViewMeaning {
    pub columns: SchemaRef,
    /// The tables that it names, those of other schemas with them.
    pub reads: Vec<String>,
    /// Rows and columns of one dataset, or why it is no such choice.
    pub selection: std::result::Result<ViewSelection, String>,
}

impl Catalog {
    /// What a view of this text is: checked whole, so that whatever can be said against it is said before it gets a name.
    ///
    /// # Errors
    /// `BadInput` for text that is no SELECT, does not plan, or answers two columns of one name; `NotFound` for a table that isn't there.
    pub async fn view_meaning(&self, sql: &str) -> Result<ViewMeaning> {
        let named = self.names(&Request::new(sql)).await?;
        let opened = Opened::of(self, &named, None, &Pins::default()).await?;
        let Body { statement, tables, plan } = plan_body(self, sql, named, &opened).await?;
        let session = self.inner.session.clone();
        let work = move || {
            let hardened = harden(plan.clone()).map_err(to_error)?;
            physical(&session, &hardened).map(|(_, schema)| (schema, plan))
        };
        let (columns, plan) = self.plan(work).await?;
        check_columns(&columns)?;
        let selection = match shape_of(&statement, &plan) {
            Ok(shape) => self.chosen(shape).await?,
            Err(why) => Err(why),
        };
        let named = |table: &TableReference| match table.schema() {
            None | Some(resolve::PUBLIC) => table.table().to_owned(),
            Some(schema) => format!("{schema}.{}", table.table()),
        };
        let reads: BTreeSet<String> = tables.iter().map(named).collect();
        Ok(ViewMeaning { columns, reads: reads.into_iter().collect(), selection })
    }

    /// The rows and columns that a view chooses, whose predicate a job can evaluate; or why it does not. Boxed, because of views of views.
    fn chosen(&self, shape: Shape) -> BoxFuture<'_, Result<std::result::Result<ViewSelection, String>>> {
        Box::pin(async move {
            let Shape { table, columns, filter } = shape;
            let selection = match resolve::find(&self.inner.root, &table, &Pins::default()).await? {
                Some(version) => {
                    let pinned = table.contains('@').then_some(version.version);
                    ViewSelection { dataset: version.name.clone(), version: pinned, columns, filter }
                }
                // Of another view: the two choices add up.
                None => match self.view_of(&table).await? {
                    Some(view) => match self.view_meaning(&view.sql).await?.selection {
                        Ok(base) => base.narrow(None, columns, filter.as_deref())?,
                        Err(why) => return Ok(Err(format!("it reads the view `{table}`, which can't be read either: {why}"))),
                    },
                    None => return Ok(Err(format!("`{table}` is no dataset"))),
                },
            };
            if let Some(filter) = &selection.filter {
                let version = resolve::open_at(&self.inner.root, &selection.dataset, selection.version).await?;
                if let Err(error) = select::check_filter(self, &version, filter).await {
                    return Ok(Err(error.to_string()));
                }
            }
            Ok(Ok(selection))
        })
    }

    pub(super) async fn view_of(&self, table: &str) -> Result<Option<View>> {
        match ViewName::parse(table) {
            Ok(name) => views::open(&self.inner.root, &name).await,
            Err(_) => Ok(None),
        }
    }

    /// Rows and uncompressed bytes of the row groups that a query scans, as planned: nothing is read.
    pub async fn scanned(&self, sql: &str) -> Result<(u64, u64)> {
        let (session, plan) = self.bound(&Request::new(sql)).await?;
        self.plan(move || {
            let (plan, _) = physical(&session, &plan)?;
            let (mut rows, mut bytes) = (0, 0);
            let mut open = vec![&plan];
            while let Some(node) = open.pop() {
                if let Some(scan) = node.downcast_ref::<RowGroupScan>() {
                    let of = scan.planned();
                    (rows, bytes) = (rows + of.0, bytes + of.1);
                }
                open.extend(node.children());
            }
            Ok((rows, bytes))
        })
        .await
    }
}

/// A table has names for its columns, each once.
fn check_columns(schema: &SchemaRef) -> Result<()> {
    if schema.fields().is_empty() {
        return Err(Error::bad_input("a view without columns"));
    }
    let mut seen = BTreeSet::new();
    for field in schema.fields() {
        if !seen.insert(field.name()) {
            return Err(Error::bad_input(format!("the view has two columns `{}`", field.name().escape_debug()))
                .with_remedy("give each column a name of its own with AS"));
        }
        if field.data_type() == &DataType::Null {
            return Err(Error::bad_input(format!("the view's column `{}` has no type", field.name().escape_debug()))
                .with_remedy("write CAST(NULL AS type)"));
        }
    }
    Ok(())
}
