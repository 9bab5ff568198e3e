//! What the HTTP pages ask.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::Result;
use forebay_flight::api::{DatasetsRequest, JobRequest};
use serde_json::{Value, json};

use super::Engine;
use crate::http::Overview;

/// The engine as the HTTP port sees it.
pub(super) struct Pages(pub(super) Arc<Engine>);

#[async_trait]
impl Overview for Pages {
    async fn ready(&self) -> Result<()> {
        forebay_storage::delta::list_datasets(self.0.root()).await?;
        self.0.state().await.map(|_| ())
    }

    async fn overview(&self) -> Result<Value> {
        overview(&self.0).await
    }
}

/// Datasets and jobs.
pub(crate) async fn overview(engine: &Engine) -> Result<Value> {
    let datasets = engine.datasets(DatasetsRequest::List).await?;
    let jobs = engine.job_status(JobRequest::default()).await?;
    Ok(json!({ "datasets": datasets, "jobs": jobs }))
}
