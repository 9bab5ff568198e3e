//! Answers requests: a lock per key around s3s-fs, and the faults around the lock.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::dto::{CompleteMultipartUploadInput, PutObjectInput};
use s3s::host::SingleDomain;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Request, S3Result};
use s3s_fs::FileSystem;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::faults::{Asked, Drawn};
use super::{Conditions, Fault, Options};

type Problem = Box<dyn std::error::Error + Send + Sync>;
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Problem>>;

/// The connection is to be reset instead of answering.
#[derive(Debug)]
pub(super) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("injected")
    }
}

impl std::error::Error for Broken {}

#[derive(Debug)]
pub(super) struct Store {
    service: S3Service,
    folder: PathBuf,
    domain: Option<String>,
    conditions: Conditions,
    faults: Drawn,
    /// One lock per key that was ever asked for.
    keys: Mutex<HashMap<String, Arc<RwLock<()>>>>,
    /// Listings read it, deletions write it: a listing walks folders.
    deleting: Arc<RwLock<()>>,
}

/// What a request is about.
#[derive(Debug)]
struct Call {
    method: Method,
    /// `BUCKET/KEY`, where it names an object.
    key: Option<String>,
    conditional: bool,
    /// A part of an upload: the object is made when the upload is completed.
    part: bool,
    /// Several keys at once.
    sweep: bool,
}

/// Locks of one request, until it is done.
#[derive(Debug, Default)]
struct Held {
    _read: Option<OwnedRwLockReadGuard<()>>,
    _write: Option<OwnedRwLockWriteGuard<()>>,
    _listing: Option<OwnedRwLockReadGuard<()>>,
    _deleting: Option<OwnedRwLockWriteGuard<()>>,
}

/// Takes the conditions off writes.
struct Careless;

#[async_trait::async_trait]
impl S3Access for Careless {
    async fn check(&self, _: &mut S3AccessContext<'_>) -> S3Result<()> {
        Ok(())
    }

    async fn put_object(&self, req: &mut S3Request<PutObjectInput>) -> S3Result<()> {
        (req.input.if_none_match, req.input.if_match) = (None, None);
        Ok(())
    }

    async fn complete_multipart_upload(&self, req: &mut S3Request<CompleteMultipartUploadInput>) -> S3Result<()> {
        (req.input.if_none_match, req.input.if_match) = (None, None);
        Ok(())
    }
}

impl Store {
    pub(super) fn new(options: Options) -> Result<Self> {
        let files = FileSystem::new(&options.folder).map_err(|e| anyhow::anyhow!("{}: {e:?}", options.folder.display()))?;
        let mut builder = S3ServiceBuilder::new(files);
        if let Some((access, secret)) = &options.keys {
            builder.set_auth(SimpleAuth::from_single(access.clone(), secret.clone()));
        }
        if let Some(domain) = &options.domain {
            builder.set_host(SingleDomain::new(domain).context("the endpoint's domain")?);
        }
        if options.conditions == Conditions::Ignored {
            builder.set_access(Careless);
        }
        Ok(Self {
            service: builder.build(),
            folder: options.folder,
            domain: options.domain,
            conditions: options.conditions,
            faults: Drawn::new(options.faults),
            keys: Mutex::default(),
            deleting: Arc::default(),
        })
    }

    pub(super) fn faults(&self) -> &Drawn {
        &self.faults
    }

    /// Answers one request; the connection is reset where it can't.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer, Broken> {
        if request.uri().path() == "/healthz" {
            return Ok(text(StatusCode::OK, "ok\n"));
        }
        let call = self.call(&request);
        let target = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let fault = self.faults.next(&Asked { method: &call.method, target, conditional: call.conditional });
        match fault {
            Some(Fault::SlowDown) => return Ok(refused(StatusCode::SERVICE_UNAVAILABLE, "SlowDown")),
            Some(Fault::Conflict) => return Ok(refused(StatusCode::CONFLICT, "ConditionalRequestConflict")),
            Some(Fault::Reset) => return Err(Broken),
            Some(Fault::Slow(late)) => tokio::time::sleep(late).await,
            _ => {}
        }
        // A task of its own: what a store began it finishes, whether the client is still there or not.
        let answer = tokio::spawn(self.done(call, request)).await.map_err(|_| Broken)?;
        match fault {
            Some(Fault::LostConnection) => Err(Broken),
            Some(Fault::LostAnswer) => Ok(refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError")),
            Some(Fault::LostConflict) => Ok(refused(StatusCode::CONFLICT, "ConditionalRequestConflict")),
            Some(Fault::Cut) => cut(answer).await,
            _ => Ok(answer),
        }
    }

    async fn done(self: Arc<Self>, call: Call, request: Request<Incoming>) -> Answer {
        let _held = self.hold(&call).await;
        if !self.has_bucket(&call) {
            return refused(StatusCode::NOT_FOUND, "NoSuchBucket");
        }
        if self.is_folder(&call) {
            return refused(StatusCode::NOT_FOUND, "NoSuchKey");
        }
        match self.service.call(request.map(s3s::Body::from)).await {
            Ok(answer) => answer.map(|body| body.map_err(Problem::from).boxed_unsync()),
            Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        }
    }

    fn call(&self, request: &Request<Incoming>) -> Call {
        let (method, uri, headers) = (request.method().clone(), request.uri(), request.headers());
        let path = percent_decode_str(uri.path().trim_start_matches('/')).decode_utf8_lossy().into_owned();
        let full = match self.bucket_of_host(uri, headers) {
            Some(bucket) => format!("{bucket}/{path}"),
            None => path,
        };
        let has = |name: &str| uri.query().unwrap_or_default().split('&').any(|p| p.split('=').next() == Some(name));
        let writes = matches!(method, Method::PUT | Method::POST);
        Call {
            key: full.split_once('/').filter(|(_, key)| !key.is_empty()).map(|_| full.clone()),
            conditional: writes && (headers.contains_key("if-none-match") || headers.contains_key("if-match")),
            part: has("partNumber") || has("uploads"),
            sweep: has("delete"),
            method,
        }
    }

    fn bucket_of_host(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let domain = self.domain.as_ref()?;
        let host = headers.get("host").and_then(|h| h.to_str().ok()).or(uri.authority().map(|a| a.as_str()))?;
        host.strip_suffix(domain.as_str()).and_then(|b| b.strip_suffix('.')).map(str::to_owned)
    }

    async fn hold(&self, call: &Call) -> Held {
        let mut held = Held::default();
        let reads = matches!(call.method, Method::GET | Method::HEAD);
        match &call.key {
            None if call.sweep => held._deleting = Some(self.deleting.clone().write_owned().await),
            None => held._listing = Some(self.deleting.clone().read_owned().await),
            Some(_) if call.part || (self.conditions == Conditions::Racing && !reads) => {}
            Some(key) => {
                let lock = self.keys.lock().entry(key.clone()).or_default().clone();
                if reads {
                    held._read = Some(lock.read_owned().await);
                } else {
                    held._write = Some(lock.write_owned().await);
                }
                if call.method == Method::DELETE {
                    held._deleting = Some(self.deleting.clone().write_owned().await);
                }
            }
        }
        held
    }

    /// s3s-fs would make it with its first object.
    fn has_bucket(&self, call: &Call) -> bool {
        let bucket = call.key.as_ref().and_then(|key| key.split('/').next());
        bucket.is_none_or(|bucket| self.folder.join(bucket).is_dir())
    }

    /// A key that is the beginning of other keys is a folder here, and no object.
    fn is_folder(&self, call: &Call) -> bool {
        let reads = matches!(call.method, Method::GET | Method::HEAD);
        reads && call.key.as_ref().is_some_and(|key| !key.ends_with('/') && self.folder.join(key).is_dir())
    }
}

fn body(content: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, Problem> {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

fn text(status: StatusCode, content: &'static str) -> Answer {
    let mut answer = Response::new(body(content));
    *answer.status_mut() = status;
    answer
}

fn refused(status: StatusCode, code: &str) -> Answer {
    let xml = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>injected</Message></Error>");
    let mut answer = Response::new(body(xml));
    *answer.status_mut() = status;
    answer.headers_mut().insert("content-type", http::HeaderValue::from_static("application/xml"));
    answer
}

/// Half of the body, and then the end of the connection.
async fn cut(answer: Answer) -> Result<Answer, Broken> {
    let (mut parts, whole) = answer.into_parts();
    let whole = whole.collect().await.map_err(|_| Broken)?.to_bytes();
    if whole.len() < 2 {
        return Ok(Response::from_parts(parts, body(whole)));
    }
    // Announced in full, so that the client can tell.
    parts.headers.insert("content-length", whole.len().into());
    let half = whole.slice(..whole.len() / 2);
    let frames = stream::iter([Ok(Frame::data(half)), Err(Problem::from(Broken))]);
    Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()))
}
