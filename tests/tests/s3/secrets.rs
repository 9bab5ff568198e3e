//! Secrets that were planted are nowhere to be read again: not in logs, not in errors, not in what is stored.

use super::support::{ACCESS, SECRET, Store};
use crate::cluster::support::Cluster;
use crate::support::{Home, text};

const SESSION: &str = "planted/session+token==Wx52";
const TOKEN: &str = "planted-bearer-Ty93";

/// A text without any planted secret, however it may be written in a URL.
fn clean(what: &str, said: &[u8]) {
    let said = String::from_utf8_lossy(said);
    for secret in [ACCESS, SECRET, SESSION, TOKEN] {
        let encoded = secret.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        for form in [secret, &encoded] {
            if let Some(at) = said.find(form) {
                let around: String = said[..at].chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
                panic!("{what} shows {form:?} behind: {around}");
            }
        }
    }
}

/// Runs a command whose output must be clean; gives its status and what it said.
fn runs(home: &Home, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let out = home.command(args).envs(env.iter().copied()).output().unwrap();
    let what = format!("forebay {}", args.join(" ").replace(TOKEN, "TOKEN"));
    clean(&what, &out.stdout);
    clean(&what, &out.stderr);
    (out.status.code(), text(&out.stdout) + &text(&out.stderr))
}

fn planted(store: &Store) -> Home {
    let mut home = store.home();
    let more = [("AWS_SESSION_TOKEN", SESSION), ("FOREBAY_LOG", "debug")];
    home.env.extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
    home
}

#[test]
fn a_cluster_that_logs_everything_shows_and_stores_no_secret() {
    let store = Store::faulty(9, 40);
    let mut home = planted(&store);
    home.env.push(("FOREBAY_TOKEN".to_owned(), TOKEN.to_owned()));
    let log = home.path("log");
    home.stderr = Some(log.clone());
    let cluster = Cluster::at(home, 3, 50, "SELECT n FROM input");
    // `Home` takes FOREBAY_TOKEN out of what tests inherit, not out of what they ask for.
    let _dispatcher = cluster.dispatcher(0);
    let _standby = cluster.dispatcher(1);
    let _worker = cluster.worker("w");
    let servers = cluster.servers();
    for args in [
        &["materialize", "p.toml", "--server", &servers][..],
        &["read", "numbers", "--batch-size", "10", "--server", &servers],
        &["sql", "SELECT * FROM system.jobs", "--server", &servers],
        &["workers", "--server", &servers],
        &["config", "--json"],
        &["config", "--dump"],
        &["config", "--json", "--token", TOKEN],
    ] {
        let (status, said) = runs(&cluster.home, args, &[]);
        assert_eq!(status, Some(0), "{args:?}: {said}");
    }
    let (status, said) = runs(&cluster.home, &["datasets", "--server", &servers], &[("FOREBAY_TOKEN", "wrong")]);
    assert!(status != Some(0) && said.contains("token"), "{said}");
    let logged = std::fs::read(&log).unwrap();
    assert!(text(&logged).contains("DEBUG"), "the servers log at the level that the test asks for");
    clean("the servers' log", &logged);
    let objects = store.objects("");
    assert!(objects.keys().any(|name| name.contains("journal/")), "{:?}", objects.keys());
    for (name, bytes) in &objects {
        clean(&format!("the object {name}"), bytes);
    }
}

/// What is wrong, the command that meets it, and the environment that makes it so.
type Case<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);

#[test]
fn errors_of_stores_name_no_secret() {
    let store = Store::reliable();
    let home = planted(&store);
    home.write("data/a.csv", "n\n1\n");
    home.write("p.toml", crate::support::csv_pipeline("numbers", "SELECT n FROM input", ""));
    let wrong = SECRET.replace("planted", "wronged");
    let cases: [Case; 5] = [
        ("other keys", &["materialize", "p.toml"], &[("AWS_SECRET_ACCESS_KEY", &wrong)]),
        ("no such bucket", &["materialize", "p.toml", "--root", "s3://nowhere/root"], &[]),
        ("no endpoint", &["datasets"], &[("AWS_ENDPOINT", "http://127.0.0.1:9")]),
        ("a URL with keys", &["datasets", "--root", &format!("s3://{ACCESS}:{}@bucket/root", SECRET.replace('/', "%2F"))], &[]),
        ("no server", &["datasets", "--server", "grpc://127.0.0.1:9", "--token", TOKEN], &[]),
    ];
    for (what, args, env) in cases {
        let (status, said) = runs(&home, args, env);
        assert!(matches!(status, Some(1..=3)) && said.contains("error:"), "{what}: {status:?} {said}");
        assert!(!said.contains(&wrong), "{what}: {said}");
    }
}
