//! DataFusion alone over Parquet files, for `bench/sql.py`: `in_process TABLES.json THREADS RUNS QUERY.sql...` answers with the seconds of each run of each
//! query, as JSON. TABLES names the files of each table; `views` in it, the text of each view.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::TryStreamExt;
use serde::Deserialize;

#[derive(Deserialize)]
struct Tables {
    tables: BTreeMap<String, Vec<String>>,
    views: BTreeMap<String, String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tables, threads, runs, queries @ ..] = args.as_slice() else {
        return Err("usage: in_process TABLES.json THREADS RUNS QUERY.sql...".into());
    };
    let (threads, runs): (usize, usize) = (threads.parse()?, runs.parse()?);
    let tables: Tables = serde_json::from_str(&std::fs::read_to_string(tables)?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let seconds = runtime.block_on(measure(tables, threads, runs, queries))?;
    println!("{}", serde_json::to_string(&seconds)?);
    Ok(())
}

async fn measure(tables: Tables, threads: usize, runs: usize, queries: &[String]) -> Result<Vec<Vec<f64>>, Box<dyn Error>> {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(threads));
    for (name, files) in tables.tables {
        let frame = context.read_parquet(files, ParquetReadOptions::default()).await?;
        context.register_table(name.as_str(), frame.into_view())?;
    }
    for (name, text) in tables.views {
        let frame = context.sql(&text).await?;
        context.register_table(name.as_str(), frame.into_view())?;
    }
    let mut all = Vec::new();
    for query in queries {
        let text = std::fs::read_to_string(query)?;
        let mut seconds = Vec::new();
        // The first is not counted.
        for _ in 0..=runs {
            let started = Instant::now();
            let mut rows = context.sql(&text).await?.execute_stream().await?;
            while rows.try_next().await?.is_some() {}
            seconds.push(started.elapsed().as_secs_f64());
        }
        all.push(seconds.split_off(1));
    }
    Ok(all)
}
