//! Joining jobs, and the streams of those who joined.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_core::ids::{ConsumerName, Incarnation, JobName, VersionId};
use forebay_core::job::{ConsumerSettings, JobRequest, JobSettings};
use forebay_core::pipeline::Shuffle;
use forebay_core::{Error, Result};
use forebay_flight::backend::{JobFlight, JobStream};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Engine, admin};
use crate::serve::Acks;

/// A consumer's place in a job, as its ticket carries it.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    job: JobName,
    incarnation: Incarnation,
    consumer: ConsumerName,
    by_action: bool,
}

impl Engine {
    /// Joins the job that a command names, or creates it.
    pub(crate) async fn open_job(&self, command: &str) -> Result<JobFlight> {
        let (settings, consumer) = self.resolve(command).await?;
        let schema = self.reader().schema(&settings).await?;
        self.check_filter(&settings).await?;
        let by_action = consumer.acks_by_action;
        let name = consumer.consumer.clone();
        let opened = self.dispatcher()?.open_job(settings, consumer).await?;
        let place = Place { job: opened.job, incarnation: opened.incarnation, consumer: name, by_action };
        let payload = serde_json::to_value(place).map_err(|e| Error::internal(format!("a ticket could not be made: {e}")))?;
        Ok(JobFlight { schema, payload, rows: None })
    }

    /// The columns that a job's consumers would get.
    pub(crate) async fn job_schema(&self, command: &str) -> Result<SchemaRef> {
        let (settings, _) = self.resolve(command).await?;
        self.reader().schema(&settings).await
    }

    /// Reads a job command and fills in what it leaves out: names of private jobs and consumers, the dataset's own shuffle.
    async fn resolve(&self, command: &str) -> Result<(JobSettings, ConsumerSettings)> {
        let mut request = JobRequest::from_json(command)?;
        let version = self.known(&request.dataset, request.version.map(VersionId)).await?;
        let unique = || uuid::Uuid::new_v4().simple().to_string();
        request.job.get_or_insert_with(|| format!("private-{}", unique()));
        request.consumer.get_or_insert_with(|| format!("consumer-{}", &unique()[..12]));
        let shuffle = admin::spec(&version).map_or(Shuffle::default(), |spec| spec.epochs.shuffle);
        request.resolve(shuffle)
    }

    /// A filter that does not plan is refused before the job exists; which rows it takes is found when a pass starts.
    async fn check_filter(&self, settings: &JobSettings) -> Result<()> {
        let Some(filter) = &settings.filter else { return Ok(()) };
        let table = match settings.version {
            Some(version) => format!("\"{}@v{version}\"", settings.dataset),
            None => settings.dataset.to_string(),
        };
        let planned = self.catalog().schema(&format!("SELECT _id FROM {table} WHERE ({filter}\n)")).await;
        planned.map(|_| ()).map_err(|e| e.context("filter"))
    }

    /// The stream of a consumer that joined. The job's own settings count, not those of the consumer's command.
    pub(crate) async fn job_stream(&self, payload: Value, acks: bool) -> Result<Box<dyn JobStream>> {
        let place: Place = serde_json::from_value(payload).map_err(|e| Error::bad_input(format!("the ticket is not of a job: {e}")))?;
        let settings = self.dispatcher()?.job_settings(&place.job).await?;
        let settings = settings.ok_or_else(|| Error::not_found(format!("there is no job `{}`", place.job)))?;
        let acks = match (acks, place.by_action) {
            (true, _) => Acks::Stream,
            (false, true) => Acks::Action,
            (false, false) => Acks::AtEnd,
        };
        self.serving()?.open_stream(Arc::new(settings), place.incarnation, place.consumer, acks).await
    }
}
