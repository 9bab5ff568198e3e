//! Running a divided query: again on the workers that are left, and at last here, as long as nobody has seen a row of it.

use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use forebay_core::{Error, Kind, Result};
use url::Url;

use super::plan::{Plan, divided};
use super::service::PlanService;
use crate::guard::{on_big_stack, to_error};

/// Times that a query is divided; after that this process runs it alone.
const DIVIDED: u32 = 2;

/// What is needed to begin a query anew. Every attempt reads the same versions: they are in the logical plan's tables.
pub(crate) struct Attempts {
    service: PlanService,
    session: SessionState,
    logical: LogicalPlan,
    least: u64,
    /// Who took part in the attempt that runs.
    workers: Vec<Url>,
    made: u32,
}

/// What an error of an attempt means.
pub(crate) enum Verdict {
    /// Begin anew with this plan.
    Again(Arc<dyn ExecutionPlan>, Arc<TaskContext>),
    Failed(Error),
}

impl Attempts {
    pub(crate) fn new(service: PlanService, session: SessionState, logical: LogicalPlan, least: u64, first: &Plan) -> Option<Self> {
        let workers = first.workers.clone();
        (!workers.is_empty()).then_some(Self { service, session, logical, least, workers, made: 1 })
    }

    /// What to do after an error. With rows under way the query can only end, saying why.
    pub(crate) async fn after(&mut self, error: DataFusionError, seen: bool) -> Verdict {
        let transport = is_transport(&error);
        let error = to_error(error);
        if !transport && matches!(error.kind, Kind::ResourceExhausted | Kind::Cancelled | Kind::Unsupported) {
            return Verdict::Failed(error);
        }
        let alive = self.service.alive(&self.workers).await;
        let lost = alive.len() < self.workers.len();
        if !lost && !transport {
            // Everyone is there: it is the query's own error.
            return Verdict::Failed(error);
        }
        let missing: Vec<&str> = self.workers.iter().filter(|w| !alive.contains(w)).map(Url::as_str).collect();
        tracing::warn!(error = %error.message, ?missing, attempt = self.made, seen, "a query lost a worker");
        if seen {
            let what =
                Error::new(Kind::Unavailable, "a worker was lost while it ran this query, and rows of the answer were given out already");
            return Verdict::Failed(what.with_remedy("ask again"));
        }
        match self.plan(alive).await {
            Ok(plan) => Verdict::Again(plan.plan, plan.session.task_ctx()),
            Err(error) => Verdict::Failed(error),
        }
    }

    async fn plan(&mut self, alive: Vec<Url>) -> Result<Plan> {
        let workers = if self.made < DIVIDED { alive } else { Vec::new() };
        self.made += 1;
        let (session, logical, least, service) = (self.session.clone(), self.logical.clone(), self.least, self.service.clone());
        let plan = on_big_stack(move || divided(session, &logical, workers, least, &service)).await?;
        self.workers.clone_from(&plan.workers);
        Ok(plan)
    }

    /// Whether another attempt is possible.
    pub(crate) fn is_divided(&self) -> bool {
        !self.workers.is_empty()
    }
}

/// Whether an error came from between the processes and not from the query. One that travelled through another worker is text by now.
fn is_transport(error: &DataFusionError) -> bool {
    if let DataFusionError::External(inner) = error.find_root()
        && inner.downcast_ref::<tonic::Status>().is_some()
    {
        return true;
    }
    let text = error.to_string();
    ["waiting for the plan to be set", "transport error", "tcp connect error", "h2 protocol error", "status: '", "code: '"]
        .iter()
        .any(|sign| text.contains(sign))
}
