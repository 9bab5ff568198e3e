#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;

use super::*;
use crate::functions::pure_functions;
use crate::session;

async fn answer(sql: &str) -> datafusion::common::Result<String> {
    let runtime = session::runtime(session::Room { memory: None, spill: 0 })?;
    let context = SessionContext::new_with_state(session::state(session::config(1), runtime, pure_functions()));
    let batches = context.sql(sql).await?.collect().await?;
    Ok(pretty_format_batches(&batches)?.to_string())
}

async fn value(expression: &str) -> String {
    let table = answer(&format!("SELECT {expression} AS v")).await.unwrap();
    table.lines().nth(3).unwrap().trim_matches(['|', ' ']).to_owned()
}

#[tokio::test]
async fn tensors_are_made_and_read() {
    let t = "tensor(make_array(1, 2, 3, 4, 5, 6), 2, 3)";
    assert_eq!(value(&format!("tensor_to_list({t})")).await, "[1, 2, 3, 4, 5, 6]");
    assert_eq!(value(&format!("tensor_shape({t})")).await, "[2, 3]");
    assert_eq!(value(&format!("tensor_get({t}, 1, 0)")).await, "4");
    assert_eq!(value(&format!("tensor_get({t}, 2, 0)")).await, "");
    assert_eq!(value(&format!("tensor_get({t}, -1, 0)")).await, "");
    assert_eq!(value(&format!("tensor_min({t})")).await, "1");
    assert_eq!(value(&format!("tensor_max({t})")).await, "6");
    assert_eq!(value(&format!("tensor_mean({t})")).await, "3.5");
    assert_eq!(value(&format!("tensor_sum({t})")).await, "21.0");
    assert_eq!(value(&format!("tensor_shape(tensor_reshape({t}, 6))")).await, "[6]");
    assert_eq!(value(&format!("tensor_to_list(tensor_scale({t}, 0.5, 1))")).await, "[1.5, 2.0, 2.5, 3.0, 3.5, 4.0]");
    assert_eq!(value(&format!("arrow_typeof(tensor_max(tensor_cast({t}, 'uint8')))")).await, "UInt8");
    assert_eq!(value("arrow_typeof(tensor_max(tensor(make_array(1, 2), 2, 'float32')))").await, "Float32");
}

#[tokio::test]
async fn nulls_stay_null_and_holes_are_errors() {
    let rows = "(VALUES (make_array(1, 2)), (NULL), (make_array(3, 4))) AS t(l)";
    let table = answer(&format!("SELECT tensor_sum(tensor(l, 2)) AS s, tensor_to_list(tensor(l, 2)) AS l FROM {rows}")).await.unwrap();
    assert!(table.contains("| 3.0 | [1, 2] |") && table.contains("|     |        |") && table.contains("| 7.0 | [3, 4] |"), "{table}");
    let error = answer("SELECT tensor(make_array(1, NULL), 2)").await.unwrap_err().to_string();
    assert!(error.contains("element 1 of a list is null"), "{error}");
    let error = answer("SELECT tensor(make_array(1, 2, 3), 2)").await.unwrap_err().to_string();
    assert!(error.contains("3 elements"), "{error}");
    let error = answer("SELECT tensor(make_array(1, 300), 2, 'uint8')").await.unwrap_err().to_string();
    assert!(error.contains("300"), "{error}");
}

#[tokio::test]
async fn wrong_calls_say_how_it_is_called() {
    for (call, part) in [
        ("tensor(5, 2)", "takes a list"),
        ("tensor(make_array(1, 2))", "called as"),
        ("tensor(make_array(1, 2), 0)", "shape"),
        ("tensor(make_array(1, 2), 2, 'uint9')", "uint8"),
        ("tensor(make_array('a'), 1)", "numbers"),
        ("tensor_get(tensor(make_array(1, 2), 2), 0, 0)", "takes 1 indexes"),
        ("tensor_mean(7)", "takes a tensor"),
        ("tensor_reshape(tensor(make_array(1, 2), 2), 3)", "can't take"),
    ] {
        let error = answer(&format!("SELECT {call}")).await.unwrap_err().to_string();
        assert!(error.contains(part), "{call}: {error}");
    }
}

#[test]
fn every_function_has_its_own_name() {
    let mut names: Vec<String> = crate::functions::step_functions().iter().map(|f| f.name().to_owned()).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
    let _: Arc<str> = Arc::from(names.join(" "));
    assert!(tensor_functions().len() > 8);
}
