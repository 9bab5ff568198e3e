//! Who may know what (ARCHITECTURE.md): checked on the resolved dependency graph, so that a forbidden crate can't come in through another.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")).exec().expect("cargo metadata")
}

/// Normal dependencies of each package, by name, over the whole graph.
fn graph(metadata: &Metadata) -> BTreeMap<String, BTreeSet<String>> {
    let names: BTreeMap<_, _> = metadata.packages.iter().map(|p| (p.id.clone(), p.name.to_string())).collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in &metadata.resolve.as_ref().expect("a resolved graph").nodes {
        let from = graph.entry(names[&node.id].clone()).or_default();
        for dep in &node.deps {
            if dep.dep_kinds.iter().any(|k| k.kind == DependencyKind::Normal) {
                from.insert(names[&dep.pkg].clone());
            }
        }
    }
    graph
}

fn reachable(graph: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(name) = open.pop() {
        for next in graph.get(&name).into_iter().flatten() {
            if seen.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    seen
}

fn assert_free_of(crate_name: &str, forbidden: &[&str]) {
    assert_graph_free_of(&graph(&metadata()), crate_name, forbidden);
}

fn assert_graph_free_of(graph: &BTreeMap<String, BTreeSet<String>>, crate_name: &str, forbidden: &[&str]) {
    assert!(graph.contains_key(crate_name), "{crate_name} is in the workspace");
    let reached = reachable(graph, crate_name);
    let found: Vec<_> = reached.iter().filter(|name| forbidden.iter().any(|f| *name == f || name.starts_with(&format!("{f}-")))).collect();
    assert!(found.is_empty(), "{crate_name} must not know {found:?}");
}

#[test]
fn core_knows_no_io_no_clock_no_arrow_no_grpc() {
    assert_free_of(
        "forebay-core",
        &["tokio", "arrow", "tonic", "hyper", "object_store", "chrono", "rand", "datafusion", "parquet", "futures"],
    );
}

#[test]
fn storage_knows_no_sql_and_no_grpc() {
    assert_free_of("forebay-storage", &["datafusion", "tonic", "arrow-flight", "forebay-sql", "forebay-flight", "forebay-server"]);
}

#[test]
fn sql_knows_no_grpc_services() {
    assert_free_of("forebay-sql", &["forebay-flight", "forebay-server"]);
    // Distributed queries bring a transport of their own, which one module hands on.
    let mut graph = graph(&metadata());
    graph.insert("datafusion-distributed".to_owned(), BTreeSet::new());
    assert!(graph.get_mut("forebay-sql").is_some_and(|sql| sql.remove("tonic")));
    assert_graph_free_of(&graph, "forebay-sql", &["tonic", "arrow-flight"]);
    let source = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../sql/src"));
    let mut open = vec![source.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten().map(|e| e.path()) {
            if entry.is_dir() && !entry.ends_with("distributed") {
                open.push(entry);
            } else if entry.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&entry).unwrap();
                let found = ["tonic::", "datafusion_distributed::"].into_iter().find(|name| text.contains(name));
                assert_eq!(found, None, "{} is not the module for it", entry.display());
            }
        }
    }
}

#[test]
fn flight_knows_no_datafusion_and_no_storage() {
    assert_free_of(
        "forebay-flight",
        &["datafusion", "parquet", "object_store", "deltalake", "slatedb", "forebay-storage", "forebay-sql", "forebay-server"],
    );
}

#[test]
fn arrows_between_our_crates_point_down_only() {
    let graph = graph(&metadata());
    let ours = |name: &str| -> Vec<String> { graph[name].iter().filter(|n| n.starts_with("forebay-")).cloned().collect() };
    assert!(ours("forebay-core").is_empty());
    assert_eq!(ours("forebay-storage"), ["forebay-core"]);
    assert_eq!(ours("forebay-sql"), ["forebay-core", "forebay-storage"]);
    assert_eq!(ours("forebay-flight"), ["forebay-core"]);
    assert_eq!(ours("forebay-server"), ["forebay-core", "forebay-flight", "forebay-sql", "forebay-storage"]);
}
