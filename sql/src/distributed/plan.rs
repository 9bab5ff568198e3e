//! Whether a query is divided, and its plan if it is.
//!
//! A query is divided when there are other workers and it reads at least `query.distributed_size` (uncompressed, all columns of the row groups
//! that it can't leave out); a smaller one is answered sooner where it was planned. It stays there too when a part of it can't be carried elsewhere: system
//! tables, `search`, `text_match` and lambdas.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::display::{PlanType, StringifiedPlan};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion_distributed::{
    DistributedCodec, DistributedExec, DistributedExt, SessionStateBuilderExt, WorkerResolver, display_plan_ascii,
};
use datafusion_proto::bytes::physical_plan_to_bytes_with_extension_codec;
use forebay_core::Result;
use url::Url;

use super::place::Places;
use super::service::PlanService;
use crate::catalog::physical;
use crate::catalog::scan::RowGroupScan;

/// A plan and the session that it runs in.
pub(crate) struct Plan {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) session: SessionState,
    pub(crate) schema: SchemaRef,
    /// The workers that take part; empty where the plan runs here.
    pub(crate) workers: Vec<Url>,
}

struct Fixed(Vec<Url>);

impl WorkerResolver for Fixed {
    fn get_urls(&self) -> Result<Vec<Url>, DataFusionError> {
        Ok(self.0.clone())
    }
}

/// Plans a query for these workers, or for this process where it isn't worth dividing. Takes as long as planning does: not on an async thread.
///
/// # Errors
/// As planning here. What can't be planned for others is planned for this process.
pub(crate) fn divided(session: SessionState, plan: &LogicalPlan, workers: Vec<Url>, least: u64, service: &PlanService) -> Result<Plan> {
    let (here, schema) = physical(&session, plan)?;
    let local = |plan| Plan { plan, session: session.clone(), schema: schema.clone(), workers: Vec::new() };
    let others = workers.iter().any(|w| Some(w) != service.me());
    if !others {
        return Ok(local(here));
    }
    let explained = match plan {
        LogicalPlan::Explain(explain) => Some(physical(&session, &explain.plan)?.0),
        _ => None,
    };
    let places = Places::new(workers);
    let session = far(&session, &places, service)?;
    if !worth(explained.as_ref().unwrap_or(&here), least, &session) {
        return Ok(local(here));
    }
    let inner = match plan {
        LogicalPlan::Explain(explain) => &explain.plan,
        _ => plan,
    };
    let there = match physical(&session, inner) {
        Ok((there, _)) if contains_stages(&there) => there,
        Ok(_) => return Ok(local(here)),
        Err(error) => {
            tracing::warn!(%error, "a query could not be divided, and runs here");
            return Ok(local(here));
        }
    };
    let there = if explained.is_some() { explain(&here, &there).unwrap_or(here) } else { there };
    Ok(Plan { plan: there, session, schema, workers: places.workers().to_vec() })
}

/// The same session, which plans for the workers.
fn far(session: &SessionState, places: &Places, service: &PlanService) -> Result<SessionState> {
    let [desired, scaled, routed] = std::array::from_fn(|_| places.clone());
    let mut builder = SessionStateBuilder::new_from_existing(session.clone())
        .with_distributed_worker_resolver(Fixed(places.workers().to_vec()))
        .with_distributed_channel_resolver(service.channels())
        .with_distributed_user_codec_arc(service.codec())
        .with_distributed_desired_task_count_handler(move |event: datafusion_distributed::DesiredTaskCountEvent<'_>| desired.desired(event))
        .with_distributed_scale_up_leaf_node_handler(move |event: datafusion_distributed::ScaleUpLeafNodeEvent<'_>| scaled.scale_up(event))
        .with_distributed_route_tasks_handler(move |event: datafusion_distributed::RouteTasksEvent<'_>| routed.route(&event));
    if let Some(me) = service.local() {
        builder = builder.with_distributed_local_worker_context(me);
    }
    Ok(builder.with_distributed_planner().build())
}

/// Whether the scans of a plan are large enough together, and all of it can be carried.
fn worth(plan: &Arc<dyn ExecutionPlan>, least: u64, session: &SessionState) -> bool {
    let (mut bytes, mut movable) = (0_u64, true);
    let looked = plan.apply(|node| {
        match node.downcast_ref::<RowGroupScan>() {
            Some(scan) if scan.has_text() => movable = false,
            Some(scan) => bytes = bytes.saturating_add(scan.bytes()),
            None => {}
        }
        Ok(if movable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    let measured = plan.downcast_ref::<datafusion::physical_plan::analyze::AnalyzeExec>().map_or(plan, |analyze| analyze.input());
    let codec = DistributedCodec::new_combined_with_user(session.config());
    looked.is_ok() && movable && bytes >= least && physical_plan_to_bytes_with_extension_codec(Arc::clone(measured), &codec).is_ok()
}

fn contains_stages(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.exists(|node| Ok(node.is::<DistributedExec>())).unwrap_or(false) || plan.name().starts_with("Distributed")
}

/// EXPLAIN with the stages in place of the plan that this process would run alone.
fn explain(here: &Arc<dyn ExecutionPlan>, there: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let known = here.downcast_ref::<ExplainExec>()?;
    let stages = display_plan_ascii(there.as_ref(), false);
    let told = known.stringified_plans().iter().map(|told| match told.plan_type {
        PlanType::FinalPhysicalPlan => StringifiedPlan::new(PlanType::FinalPhysicalPlan, stages.clone()),
        _ => told.clone(),
    });
    Some(Arc::new(ExplainExec::new(here.schema(), told.collect(), known.verbose())))
}
