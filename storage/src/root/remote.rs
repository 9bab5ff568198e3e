//! Stores behind a network, in both majors, from one URL and one configuration.

use forebay_core::{Error, Result};
use object_store::ObjectStore;
use std::sync::Arc;
use url::Url;

use super::redact;

/// A whole request, body included: generous, because a part of 16 MiB on a slow line takes longer than the default of 30 s, and each try
/// would die at the same point. A dead connection is noticed by the connect timeout and, where the client has one, the read timeout.
const REQUEST_TIMEOUT: &str = "300s";
const CONNECT_TIMEOUT: &str = "5s";
const READ_TIMEOUT: &str = "60s";
/// Retries end well before five minutes: credentials aren't renewed between them.
const RETRY_SECONDS: u64 = 120;

/// The URL without anything but scheme, bucket and path.
pub(super) fn shown(url: &Url) -> String {
    let path = url.path().trim_matches('/');
    let base = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
    if path.is_empty() { base } else { format!("{base}/{path}") }
}

macro_rules! opener {
    ($name:ident, $store:ident, [$($more:expr)?]) => {
        mod $name {
            use super::*;
            use $store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
            use $store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
            use $store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
            use $store::prefix::PrefixStore;
            use $store::{ClientConfigKey, RetryConfig};

            pub(super) fn open(url: &Url) -> Result<Arc<dyn $store::ObjectStore>> {
                let retry = RetryConfig { retry_timeout: std::time::Duration::from_secs(RETRY_SECONDS), ..RetryConfig::default() };
                let mut client =
                    vec![(ClientConfigKey::Timeout, REQUEST_TIMEOUT), (ClientConfigKey::ConnectTimeout, CONNECT_TIMEOUT), $($more)?];
                // Plain http is a choice that the user made by writing such an endpoint.
                if super::plain_endpoint(url.scheme()) {
                    client.push((ClientConfigKey::AllowHttp, "true"));
                }
                let prefix = $store::path::Path::from_url_path(url.path()).map_err(|e| bad(url, &e))?;
                macro_rules! build {
                    ($builder:ty, $key:ident) => {{
                        let mut builder = <$builder>::from_env().with_url(url.as_str()).with_retry(retry);
                        for (key, value) in client {
                            builder = builder.with_config($key::Client(key), value);
                        }
                        let store = super::super::doubtful::$name::Doubtful(builder.build().map_err(|e| bad(url, &e))?);
                        Arc::new(PrefixStore::new(store, prefix))
                    }};
                }
                Ok(match url.scheme() {
                    "s3" => build!(AmazonS3Builder, AmazonS3ConfigKey),
                    "gs" => build!(GoogleCloudStorageBuilder, GoogleConfigKey),
                    _ => build!(MicrosoftAzureBuilder, AzureConfigKey),
                })
            }
        }
    };
}

opener!(major_13, object_store, []);
opener!(major_14, object_store_014, [(ClientConfigKey::ReadTimeout, READ_TIMEOUT)]);

type Both = (Arc<dyn ObjectStore>, Arc<dyn object_store_014::ObjectStore>);

/// Opens both stores, rooted at the URL's path. Nothing is requested yet.
pub(super) fn open(url: &Url) -> Result<Both> {
    if url.host_str().is_none_or(str::is_empty) {
        return Err(Error::bad_input(format!("the root `{}` names no bucket", shown(url))).with_remedy("write it as s3://BUCKET/PATH"));
    }
    Ok((major_13::open(url)?, major_14::open(url)?))
}

fn bad(url: &Url, error: &dyn std::fmt::Display) -> Error {
    Error::bad_input(format!("the root {} can't be opened: {}", shown(url), redact(&error.to_string())))
        .with_remedy("check the URL and the environment's credentials and region")
}

fn plain_endpoint(scheme: &str) -> bool {
    let variables: &[&str] = match scheme {
        "s3" => &["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"],
        "az" => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        _ => &[],
    };
    variables.iter().any(|v| std::env::var(v).is_ok_and(|e| e.starts_with("http://")))
}
