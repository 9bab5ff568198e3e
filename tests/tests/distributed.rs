//! Who may run parts of queries on a worker: processes of its root, and nobody else.

use forebay_flight::peer;
use forebay_flight::ticket::TicketKey;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::support::Home;

/// The gRPC status and message of a call without a body.
async fn call<S>(mut service: S, address: &str, authorization: Option<&str>) -> (String, String)
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Error: std::fmt::Debug,
{
    let mut request =
        http::Request::post(format!("http://{address}/worker.WorkerService/GetWorkerInfo")).header("content-type", "application/grpc");
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    std::future::poll_fn(|context| service.poll_ready(context)).await.unwrap();
    let answer = service.call(request.body(Body::empty()).unwrap()).await.unwrap();
    let header = |name: &str| answer.headers().get(name).map_or_else(String::new, |v| v.to_str().unwrap().to_owned());
    (header("grpc-status"), header("grpc-message"))
}

#[tokio::test]
async fn strangers_run_no_parts_of_queries() {
    let home = Home::new();
    let token = ["--token", "secret"];
    let dispatcher =
        home.start(&["dispatcher", "--root", &home.root(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", token[0], token[1]]);
    let to = dispatcher.address.as_str();
    let worker = home.start(&["worker", "--dispatcher", to, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", token[0], token[1]]);
    let address = worker.address.trim_start_matches("grpc://").to_owned();
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for authorization in [None, Some("Bearer secret"), Some("Bearer wrong"), Some("Basic c2VjcmV0")] {
        // Until it is registered it answers nobody: "unavailable".
        let (status, message) = loop {
            let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
            let told = call(channel, &address, authorization).await;
            if told.0 != "14" {
                break told;
            }
            assert!(std::time::Instant::now() < limit, "{told:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        assert_eq!(status, "16", "{authorization:?}: {message}");
        assert!(message.contains("same%20root"), "{authorization:?}: {message}");
    }
    // A process of another root has a proof, and it proves nothing here.
    let other = peer::connect(&address, TicketKey::random()).unwrap();
    assert_eq!(call(other, &address, None).await.0, "16");
}
