//! A store whose "it exists already" can be believed, in both majors.
//!
//! S3 answers a conditional write with 409 when another request on the same key was in its way, and asks for it to be repeated; the clients call that
//! `AlreadyExists`, the word for a condition that was not met. Somebody who takes it for one believes himself fenced, or his shard to be stored.

use std::time::Duration;

/// Tries of one write, the first included.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(50);

macro_rules! doubtful {
    ($name:ident, $store:ident) => {
        pub(super) mod $name {
            use super::{PAUSE, TRIES};
            use async_trait::async_trait;
            use bytes::Bytes;
            use futures::stream::BoxStream;
            use std::fmt;
            use std::ops::Range;
            use $store::path::Path;
            use $store::{
                CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
                PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
            };

            /// Repeats a create that was answered by 409 and left nothing behind.
            #[derive(Debug)]
            pub(in crate::root) struct Doubtful<S>(pub(in crate::root) S);

            impl<S: fmt::Display> fmt::Display for Doubtful<S> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }

            /// Not because a condition was not met: then the client's own error is the source.
            fn in_doubt(error: &Error) -> bool {
                matches!(error, Error::AlreadyExists { source, .. } if !source.is::<Error>())
            }

            #[async_trait]
            impl<S: ObjectStore> ObjectStore for Doubtful<S> {
                async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
                    if !matches!(options.mode, PutMode::Create) {
                        return self.0.put_opts(path, payload, options).await;
                    }
                    let mut tries = 1;
                    loop {
                        match self.0.put_opts(path, payload.clone(), options.clone()).await {
                            Err(e) if tries < TRIES && in_doubt(&e) => match self.0.head(path).await {
                                Err(Error::NotFound { .. }) => tokio::time::sleep(PAUSE * tries).await,
                                // It is there, by whomever; or nobody can tell.
                                _ => return Err(e),
                            },
                            done => return done,
                        }
                        tries += 1;
                    }
                }

                async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
                    self.0.put_multipart_opts(path, options).await
                }

                async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
                    self.0.get_opts(path, options).await
                }

                async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
                    self.0.get_ranges(path, ranges).await
                }

                fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
                    self.0.delete_stream(paths)
                }

                fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
                    self.0.list(prefix)
                }

                fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
                    self.0.list_with_offset(prefix, offset)
                }

                async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
                    self.0.list_with_delimiter(prefix).await
                }

                async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
                    self.0.copy_opts(from, to, options).await
                }
            }
        }
    };
}

doubtful!(major_13, object_store);
doubtful!(major_14, object_store_014);
