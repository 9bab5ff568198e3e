//! Views: making, showing and dropping them, what they cost, and what a job that names one reads.
//!
//! Owns: the rule that datasets and views share their names. What a view's text means is asked of the catalog, each time anew: only jobs pin it.

use forebay_core::dispatch::RunPhase;
use forebay_core::ids::{DatasetName, JobName, VersionId, ViewName};
use forebay_core::job::JobRequest;
use forebay_core::view::{EpochShare, JobView, VIEW_VERSION, View, ViewCost, ViewSelection};
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::{ColumnInfo, ViewInfo, ViewsRequest};
use forebay_sql::catalog::{ViewMeaning, select_rows};
use forebay_storage::{types, views};
use futures::StreamExt;
use serde_json::Value;

use super::names::{Held, Named};
use super::{Engine, admin};

impl Engine {
    /// `forebay.views`.
    pub(crate) async fn views(&self, request: ViewsRequest) -> Result<Value> {
        match request {
            ViewsRequest::List => {
                let views = views::list(self.root()).await?;
                let mut infos = Vec::with_capacity(views.len());
                for view in views {
                    let meaning = self.catalog().view_meaning(&view.sql).await;
                    // With the cost that was measured when it was made.
                    infos.push(info(view, meaning));
                }
                admin::json_of(&infos)
            }
            ViewsRequest::Show { name } => {
                let view = self.known_view(&name).await?;
                let meaning = self.catalog().view_meaning(&view.sql).await.map_err(|e| e.context(format!("view `{}`", view.name)))?;
                let mut cost = self.measure(&view.sql, &meaning).await?;
                if cost.selected.is_none() {
                    cost.selected = Some(self.count(&view.name).await?);
                }
                admin::json_of(&info(View { cost: Some(cost), ..view }, Ok(meaning)))
            }
            ViewsRequest::Create { name, sql } => self.create_view(&name, sql).await,
            ViewsRequest::Drop { name } => {
                self.dispatcher()?;
                let view = self.known_view(&name).await?;
                let view = views::remove(self.root(), &view.name).await?;
                let meaning = Err(Error::not_found("it was dropped"));
                admin::json_of(&ViewInfo { kind: "dropped".to_owned(), error: None, ..info(view, meaning) })
            }
        }
    }

    async fn create_view(&self, name: &str, sql: String) -> Result<Value> {
        let name = ViewName::parse(name)?;
        // Only the owner of the root gives names.
        let dispatcher = self.dispatcher()?;
        let _held = self.names().hold(name.as_str(), Named::View)?;
        let taken = |what: &str| {
            Err(Error::new(Kind::AlreadyExists, format!("{what} of the name `{name}`; a view needs a name of its own"))
                .with_remedy("choose another name"))
        };
        let dataset = DatasetName(name.0.clone());
        if self.stored_version(&dataset).await?.is_some() {
            return taken("there is a dataset");
        }
        let unfinished = move |phase: &RunPhase| matches!(phase, RunPhase::Running | RunPhase::Interrupted);
        let running = dispatcher.look(move |state, _| state.datasets.get(&dataset)?.run.as_ref().map(|run| unfinished(&run.phase)));
        if running.await? == Some(true) {
            return taken("a pipeline is being materialized under");
        }
        if views::open(self.root(), &name).await?.is_some() {
            return Err(views::exists(&name));
        }
        let meaning = self.catalog().view_meaning(&sql).await?;
        let cost = match self.measure(&sql, &meaning).await {
            Ok(cost) => Some(cost),
            // Counting took too long: jobs may still wait for it, if their users will.
            Err(e) if e.kind == Kind::ResourceExhausted => None,
            Err(e) => return Err(e),
        };
        let view = View {
            v: VIEW_VERSION,
            id: uuid::Uuid::new_v4().simple().to_string(),
            name,
            sql,
            reads: meaning.reads.clone(),
            selection: meaning.selection.clone().ok(),
            cost,
            created_ms: super::planner::now_ms(),
        };
        views::create(self.root(), &view).await?;
        admin::json_of(&info(view, Ok(meaning)))
    }

    /// What a view costs: a selection is evaluated as a job's passes would, of a query it is known what it scans.
    async fn measure(&self, sql: &str, meaning: &ViewMeaning) -> Result<ViewCost> {
        match &meaning.selection {
            Ok(selection) => self.measure_selection(selection).await,
            Err(_) => {
                let (rows, bytes) = self.catalog().scanned(sql).await?;
                Ok(ViewCost { rows, bytes, ..ViewCost::default() })
            }
        }
    }

    async fn measure_selection(&self, selection: &ViewSelection) -> Result<ViewCost> {
        let version = self.view().version(&selection.dataset, selection.version).await?;
        let mut cost = ViewCost { version: Some(version.version), selected: Some(0), selection_bytes: Some(0), ..ViewCost::default() };
        for epoch in version.epochs() {
            let groups = version.row_groups(epoch);
            let rows: u64 = groups.iter().map(|(_, _, meta)| meta.rows).sum();
            let (selected, bytes, kept) = match &selection.filter {
                None => (rows, groups.iter().map(|(_, _, meta)| meta.bytes).sum(), 0),
                Some(filter) => {
                    let chosen = select_rows(self.catalog(), version.clone(), epoch, filter).await?;
                    let touched = groups.iter().enumerate().filter(|(group, _)| chosen.count(*group) > 0);
                    (chosen.total(), touched.map(|(_, (_, _, meta))| meta.bytes).sum::<u64>(), chosen.to_bytes().len() as u64)
                }
            };
            cost.rows += rows;
            cost.bytes += bytes;
            cost.selected = cost.selected.map(|sum| sum + selected);
            cost.selection_bytes = cost.selection_bytes.map(|sum| sum + kept);
            cost.epochs.push(EpochShare { epoch, rows, selected });
        }
        Ok(cost)
    }

    async fn count(&self, view: &ViewName) -> Result<u64> {
        use arrow::array::AsArray;
        use arrow::datatypes::Int64Type;
        let mut answer = self.catalog().query(&format!("SELECT count(*) FROM {view}")).await?;
        let mut rows = 0;
        while let Some(batch) = answer.stream.next().await {
            let batch = batch?;
            rows += batch.columns().first().and_then(|c| c.as_primitive_opt::<Int64Type>()).map_or(0, |c| c.values().iter().sum::<i64>());
        }
        u64::try_from(rows).map_err(|_| Error::internal("a count below zero"))
    }

    /// A view by a name from outside; one that isn't there names the nearest that is.
    async fn known_view(&self, name: &str) -> Result<View> {
        let found = match ViewName::parse(name) {
            Ok(parsed) => views::open(self.root(), &parsed).await?,
            Err(_) => None,
        };
        match found {
            Some(view) => Ok(view),
            None => {
                let known = views::names(self.root()).await?;
                let near = forebay_core::suggest::nearest(name, known.iter().map(ViewName::as_str));
                let remedy = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "`forebay view list` lists them".to_owned(),
                };
                Err(Error::not_found(format!("there is no view `{}`", name.escape_debug())).with_remedy(remedy))
            }
        }
    }

    /// Holds a dataset's name until it is given, or says that a view has it. A dataset that exists keeps its name.
    pub(super) async fn hold_dataset(&self, name: &DatasetName) -> Result<Held> {
        let held = self.names().hold(name.as_str(), Named::Dataset)?;
        let view = views::open(self.root(), &ViewName(name.0.clone())).await?;
        if view.is_some() && self.stored_version(name).await?.is_none() {
            return Err(Error::new(Kind::AlreadyExists, format!("there is a view `{name}`; a dataset needs a name of its own"))
                .with_remedy(format!("choose another name, or drop the view: forebay view drop {name}")));
        }
        Ok(held)
    }

    /// The views that name a dataset.
    pub(super) async fn views_of(&self, dataset: &DatasetName) -> Result<Vec<ViewName>> {
        let views = views::list(self.root()).await?;
        Ok(views.into_iter().filter(|view| view.reads_table(dataset.as_str())).map(|view| view.name).collect())
    }

    /// Puts what a view chooses in the place of its name, in a job's request. A job that exists goes on with what its view was.
    ///
    /// # Errors
    /// `Unsupported` for a view that is more than a choice of rows and columns.
    pub(super) async fn open_view(&self, request: &mut JobRequest) -> Result<Option<JobView>> {
        let pinned = self.pinned_view(request).await?;
        let view = match pinned {
            Some(view) => Some(view),
            None => self.selection_of(&request.dataset).await?,
        };
        let Some(view) = view else { return Ok(None) };
        let chosen = view.selection.narrow(request.version.map(VersionId), request.columns.take(), request.filter.as_deref());
        let chosen = chosen.map_err(|e| e.context(format!("view `{}`", view.name)))?;
        request.dataset = chosen.dataset.0;
        request.version = chosen.version.map(|v| v.0);
        (request.columns, request.filter) = (chosen.columns, chosen.filter);
        Ok(Some(view))
    }

    /// The view that the request's job was opened by, if it names that view again and is not to begin anew.
    async fn pinned_view(&self, request: &JobRequest) -> Result<Option<JobView>> {
        let (Some(job), Ok(dispatcher)) = (&request.job, self.dispatcher()) else { return Ok(None) };
        if request.restart == Some(true) {
            return Ok(None);
        }
        let settings = dispatcher.job_settings(&JobName::parse(job)?).await?;
        let view = settings.and_then(|settings| settings.view).filter(|view| view.name.as_str() == request.dataset);
        Ok(view.map(|view| *view))
    }

    /// What a name chooses if it is a view's and no dataset's.
    ///
    /// # Errors
    /// `Unsupported` for a view that is more than a choice of rows and columns.
    pub(crate) async fn selection_of(&self, name: &str) -> Result<Option<JobView>> {
        let Ok(name) = ViewName::parse(name) else { return Ok(None) };
        if self.stored_version(&DatasetName(name.0.clone())).await?.is_some() {
            return Ok(None);
        }
        let Some(view) = views::open(self.root(), &name).await? else { return Ok(None) };
        let meaning = self.catalog().view_meaning(&view.sql).await.map_err(|e| e.context(format!("view `{name}`")))?;
        match meaning.selection {
            Ok(selection) => Ok(Some(JobView { name, selection })),
            Err(why) => Err(Error::unsupported(format!("the view `{name}` can't be read as a job: {why}")).with_remedy(
                "a job reads SELECT columns FROM dataset WHERE condition; ask others by SQL, or materialize them: [source] sql = \"...\"",
            )),
        }
    }
}

fn info(view: View, meaning: Result<ViewMeaning>) -> ViewInfo {
    let (kind, error) = match &meaning {
        Ok(ViewMeaning { selection: Ok(_), .. }) => ("selection", None),
        Ok(ViewMeaning { selection: Err(why), .. }) => ("query", Some(why.clone())),
        Err(error) => ("broken", Some(error.to_string())),
    };
    let columns = meaning.as_ref().map(|m| m.columns.fields().iter().map(|f| f.as_ref().clone()).collect()).unwrap_or_default();
    let columns: Vec<arrow::datatypes::Field> = columns;
    let column = |field: &arrow::datatypes::Field| ColumnInfo {
        name: field.name().clone(),
        r#type: types::type_name(field),
        nullable: field.is_nullable(),
        text_index: None,
    };
    let selection = meaning.ok().and_then(|m| m.selection.ok());
    ViewInfo {
        name: view.name.0,
        sql: view.sql,
        kind: kind.to_owned(),
        dataset: selection.as_ref().map(|s| s.dataset.0.clone()),
        version: selection.as_ref().and_then(|s| s.version).map(|v| v.0),
        filter: selection.and_then(|s| s.filter),
        columns: columns.iter().map(column).collect(),
        reads: view.reads,
        error,
        share: view.cost.as_ref().and_then(ViewCost::share),
        cost: view.cost,
        created_ms: view.created_ms,
    }
}
