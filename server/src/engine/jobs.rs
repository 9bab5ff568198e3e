//! Joining jobs, and the streams of those who joined.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_core::ids::{ConsumerName, DatasetName, Incarnation, JobName, Session, VersionId};
use forebay_core::job::{ConsumerSettings, JobRequest, JobSettings};
use forebay_core::pipeline::Shuffle;
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::JobPlace;
use forebay_flight::backend::{JobFlight, JobStream};
use forebay_storage::delta::DatasetVersion;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Engine, admin};
use crate::dispatcher::Member;
use crate::serve::Acks;

/// A consumer's place in a job, as its ticket carries it.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    job: JobName,
    incarnation: Incarnation,
    consumer: ConsumerName,
    #[serde(default)]
    session: Option<Session>,
    by_action: bool,
}

/// A job command, with what it leaves out filled in.
pub(super) struct Asked {
    pub(super) settings: JobSettings,
    pub(super) consumer: ConsumerSettings,
    pub(super) session: Option<Session>,
}

impl Engine {
    /// Joins the job that a command names, or creates it.
    pub(crate) async fn open_job(&self, command: &str) -> Result<JobFlight> {
        let Asked { settings, consumer, session } = self.resolve(command).await?;
        let schema = self.reader().schema(self.dispatcher()?, &settings).await?;
        self.check_filter(&settings).await?;
        let by_action = consumer.acks_by_action;
        let name = consumer.consumer.clone();
        let opened = self.dispatcher()?.open_job(settings, consumer, session).await?;
        let place = JobPlace {
            job: opened.job.0.clone(),
            incarnation: opened.incarnation.0,
            consumer: name.0.clone(),
            pass: opened.pass.map(|p| p.0),
            created_ms: opened.created_ms,
            lease_ms: u64::try_from(self.dispatcher()?.term().await?.as_millis()).unwrap_or(u64::MAX),
        };
        let ticket = Place { job: opened.job, incarnation: opened.incarnation, consumer: name, session, by_action };
        let payload = serde_json::to_value(ticket).map_err(|e| Error::internal(format!("a ticket could not be made: {e}")))?;
        Ok(JobFlight { schema, payload, place, rows: None })
    }

    /// The columns that a job's consumers would get.
    pub(crate) async fn job_schema(&self, command: &str) -> Result<SchemaRef> {
        let Asked { settings, .. } = self.resolve(command).await?;
        self.reader().schema(self.dispatcher()?, &settings).await
    }

    /// Reads a job command and fills in what it leaves out: names of private jobs and consumers, the dataset's own shuffle. A view's name stands for
    /// what it chooses.
    pub(super) async fn resolve(&self, command: &str) -> Result<Asked> {
        let mut request = JobRequest::from_json(command)?;
        let view = self.open_view(&mut request).await?;
        let version = self.known_or_coming(&request.dataset, request.version.map(VersionId)).await?;
        let unique = || uuid::Uuid::new_v4().simple().to_string();
        request.job.get_or_insert_with(|| format!("private-{}", unique()));
        request.consumer.get_or_insert_with(|| format!("consumer-{}", &unique()[..12]));
        let shuffle = admin::spec(&version).map_or(Shuffle::default(), |spec| spec.epochs.shuffle);
        let session = request.session.map(Session);
        let (mut settings, consumer) = request.resolve(shuffle)?;
        settings.view = view.map(Box::new);
        Ok(Asked { settings, consumer, session })
    }

    /// A dataset that exists, or whose first epoch is being written; the dispatcher knows whether jobs may come, and what became of those that did.
    async fn known_or_coming(&self, name: &str, version: Option<VersionId>) -> Result<Arc<DatasetVersion>> {
        match self.known(name, version).await {
            Err(error) if error.kind == Kind::NotFound && version.is_none() => {
                let Ok(dataset) = DatasetName::parse(name) else { return Err(error) };
                self.reader().staged.coming(self.dispatcher()?, &dataset).await?.ok_or(error)
            }
            found => found,
        }
    }

    /// A filter that does not plan is refused before the job exists; which rows it takes is found when a pass starts.
    pub(super) async fn check_filter(&self, settings: &JobSettings) -> Result<()> {
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
        let Place { job, incarnation, consumer, session, .. } = place;
        self.serving()?.open_stream(Arc::new(settings), Member { job, incarnation, consumer, session }, acks).await
    }
}
